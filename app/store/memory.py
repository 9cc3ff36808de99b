"""The durable store in memory: for tests, and for a whole Rolecall inside one process. Nothing outlives it."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from app.clock import Clock, system_clock
from app.errors import Conflict, NotFound, RevConflict
from app.models.deployment import Deployment
from app.models.event import Event
from app.models.flow import Flow, FlowVersion, version_id_of
from app.models.run import Run, RunStatus
from app.ports import JournalPage, KeyClaim, Page, RunFilter
from app.store import records
from app.store.records import Document


class MemoryStore:
    """:class:`app.ports.Store` in memory. Thread-safe.

    It keeps the same documents as the one on MongoDB, so that nothing comes back that would not come back from there.
    """

    def __init__(self, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._flows: dict[str, Document] = {}
        self._versions: dict[str, dict[str, Document]] = {}
        """By flow and version, in the order of their numbers."""
        self._deployments: dict[str, Document] = {}
        self._runs: dict[str, Document] = {}
        self._keys: dict[tuple[str, str], str] = {}
        """Run ids by deployment and idempotency key."""
        self._events: dict[str, list[Document]] = {}
        self._journals: dict[str, list[JournalPage]] = {}
        self._effects: dict[str, Document] = {}
        """By idempotency key: holder, output, and until when."""
        self._counted: dict[str, set[str]] = {}

    def ping(self) -> None:
        """Nothing can be wrong."""

    def prepare(self) -> None:
        """Nothing is to be made."""

    def close(self) -> None:
        """Nothing is open."""

    # --- flows ---------------------------------------------------------------------------------------------------

    def save_version(
        self,
        flow_id: str,
        *,
        flow_name: str,
        document: Mapping[str, Any],
        content_hash: str,
        needs: tuple[tuple[str, ...], ...],
        title: str,
        now: str,
    ) -> tuple[FlowVersion, bool]:
        version_id = version_id_of(content_hash)
        with self._lock:
            versions = self._versions.setdefault(flow_id, {})
            if version_id in versions:
                known = records.version_of(versions[version_id])
                if known.content_hash != content_hash:
                    raise Conflict(f"flow {flow_id!r} has another document under the version id {version_id!r}")
                return known, False
            version = FlowVersion(
                flow_id=flow_id,
                version_id=version_id,
                number=len(versions) + 1,
                content_hash=content_hash,
                document=dict(document),
                flow_name=flow_name,
                needs=needs,
                created_at=now,
            )
            versions[version_id] = records.version_document(version)
            flow = self._flows.setdefault(flow_id, {"_id": flow_id, "createdAt": now})
            flow.update(title=title, versions=version.number, updatedAt=now)
            return version, True

    def publish(self, flow_id: str, version_id: str, *, now: str) -> Flow:
        with self._lock:
            if flow_id not in self._flows:
                raise NotFound.of("flow", flow_id)
            if version_id not in self._versions[flow_id]:
                raise NotFound.of("version", version_id)
            self._flows[flow_id].update(publishedVersionId=version_id, updatedAt=now)
            return records.flow_of(self._flows[flow_id])

    def get_flow(self, flow_id: str) -> Flow | None:
        return self.get_flows([flow_id]).get(flow_id)

    def get_flows(self, flow_ids: Collection[str]) -> dict[str, Flow]:
        with self._lock:
            return {ident: records.flow_of(self._flows[ident]) for ident in flow_ids if ident in self._flows}

    def list_flows(self, *, after: str | None = None, limit: int = 100) -> Page[Flow]:
        with self._lock:
            found = [self._flows[ident] for ident in sorted(self._flows) if after is None or ident > after]
            return records.page(found, limit, records.flow_of, lambda flow: str(flow["_id"]))

    def get_version(self, flow_id: str, version_id: str) -> FlowVersion | None:
        with self._lock:
            found = self._versions.get(flow_id, {}).get(version_id)
            return None if found is None else records.version_of(found)

    def list_versions(self, flow_id: str, *, after: str | None = None, limit: int = 100) -> Page[FlowVersion]:
        before = records.read_number_cursor(after)
        with self._lock:
            newest_first = reversed(self._versions.get(flow_id, {}).values())
            found = [version for version in newest_first if before is None or version["number"] < before]
            return records.page(found, limit, records.version_of, lambda version: str(version["number"]))

    # --- deployments ---------------------------------------------------------------------------------------------

    def put_deployment(self, deployment: Deployment) -> None:
        with self._lock:
            if deployment.rev != self.deployment_rev(deployment.id) + 1:
                current = self.get_deployment(deployment.id)
                given = deployment.rev - 1 or None
                raise RevConflict(deployment.id, current=None if current is None else current.rev, given=given)
            self._deployments[deployment.id] = records.deployment_document(deployment)

    def get_deployment(self, deployment_id: str) -> Deployment | None:
        with self._lock:
            found = self._deployments.get(deployment_id)
            return None if found is None or found["deployment"] is None else records.deployment_of(found)

    def deployment_rev(self, deployment_id: str) -> int:
        with self._lock:
            found = self._deployments.get(deployment_id)
            return 0 if found is None else int(found["rev"])

    def list_deployments(
        self, *, flow: str | None = None, after: str | None = None, limit: int = 100
    ) -> Page[Deployment]:
        with self._lock:
            found = [
                self._deployments[ident]
                for ident in sorted(self._deployments)
                if self._deployments[ident]["deployment"] is not None
                and (after is None or ident > after)
                and (flow is None or flow in self._deployments[ident]["flows"])
            ]
            return records.page(found, limit, records.deployment_of, lambda deployment: str(deployment["_id"]))

    def delete_deployment(self, deployment_id: str) -> bool:
        with self._lock:
            if self.get_deployment(deployment_id) is None:
                return False
            # What stays is a tombstone, in which the rev counts on.
            self._deployments[deployment_id] |= {
                "deployment": None, "flows": [], "rev": self.deployment_rev(deployment_id) + 1,
            }  # fmt: skip
            return True

    # --- the ledger ----------------------------------------------------------------------------------------------

    def insert_run(self, run: Run) -> Run | None:
        with self._lock:
            if run.run_id in self._runs:
                return None
            if run.idempotency_key is not None:
                holder = self._keys.setdefault((run.deployment_id, run.idempotency_key), run.run_id)
                if holder != run.run_id:
                    return self.get_run(holder)
            self._runs[run.run_id] = records.run_document(run)
            return None

    def get_run(self, run_id: str) -> Run | None:
        with self._lock:
            found = self._runs.get(run_id)
            return None if found is None else records.run_of(found)

    def find_run(self, deployment_id: str, idempotency_key: str) -> Run | None:
        with self._lock:
            holder = self._keys.get((deployment_id, idempotency_key))
            return None if holder is None else self.get_run(holder)

    def mirror_run(self, run: Run) -> bool:
        with self._lock:
            stored = self._runs.get(run.run_id)
            if stored is None or stored["rev"] >= run.rev or RunStatus(stored["status"]).ended:
                return False
            stored.update(records.run_changes(run))
            return True

    def refuse_run(self, run: Run) -> bool:
        with self._lock:
            if not self.mirror_run(run):
                return False
            stored = self._runs[run.run_id]
            self._keys.pop((stored["deployment"], stored.pop("idempotencyKey", "")), None)
            return True

    def request_cancel(self, run_id: str) -> None:
        with self._lock:
            stored = self._runs.get(run_id)
            if stored is not None and not RunStatus(stored["status"]).ended:
                stored["cancel"] = True

    def ended_runs(self, run_ids: Sequence[str]) -> set[str]:
        with self._lock:
            found = {run_id: self._runs[run_id]["status"] for run_id in run_ids if run_id in self._runs}
            return {run_id for run_id, status in found.items() if RunStatus(status).ended}

    def list_runs(self, where: RunFilter, *, after: str | None = None, limit: int = 50) -> Page[Run]:
        before = records.read_cursor(after)
        asked = records.run_filter(where).items()
        with self._lock:
            found = [
                run
                for run in self._runs.values()
                if asked <= run.items() and (before is None or run["position"] < before)
            ]
            found.sort(key=lambda run: run["position"], reverse=True)
            return records.page(found, limit, records.run_of, lambda run: records.cursor_of(run["position"]))

    def append_events(self, run_id: str, events: Sequence[Event]) -> None:
        if not events:
            return
        records.check_sequence(run_id, events)
        with self._lock:
            stored = self._events.setdefault(run_id, [])
            last = stored[-1]["last"] if stored else 0
            records.check_joins(run_id, last, events)
            stored += records.event_chunks(run_id, [event for event in events if event.seq > last])

    def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        with self._lock:
            chunks = [chunk for chunk in self._events.get(run_id, []) if chunk["last"] > after]
        return [event for chunk in chunks for event in records.events_of(chunk) if event.seq > after][:limit]

    def drop_events(self, run_id: str) -> None:
        with self._lock:
            self._events.pop(run_id, None)

    # --- the journal of a run, idempotency keys of nodes ---------------------------------------------------------

    def journal(self, run_id: str) -> list[JournalPage]:
        with self._lock:
            return list(self._journals.get(run_id, ()))

    def journal_put(self, run_id: str, page: JournalPage) -> bool:
        with self._lock:
            pages = self._journals.setdefault(run_id, [])
            if len(pages) >= page.number:
                return pages[page.number - 1].writer == page.writer
            pages.append(page)
            return True

    def drop_journal(self, run_id: str) -> None:
        with self._lock:
            self._journals.pop(run_id, None)

    def claim_key(self, key: str, *, holder: str, ttl_ms: int) -> KeyClaim:
        with self._lock:
            now_ms, found = self._clock(), self._effects.get(key)
            if found is not None and now_ms < found["until"]:
                if found["output"] is not None:
                    return KeyClaim("kept", found["output"])
                if found["holder"] != holder:
                    return KeyClaim("taken")
            self._effects[key] = {"holder": holder, "output": None, "until": now_ms + ttl_ms}
            return KeyClaim("mine")

    def keep_output(self, key: str, *, holder: str, output: str, ttl_ms: int) -> bool:
        with self._lock:
            if self._effects.get(key, {}).get("holder") != holder:
                return False
            self._effects[key] = {"holder": holder, "output": output, "until": self._clock() + ttl_ms}
            return True

    def release_key(self, key: str, *, holder: str) -> None:
        with self._lock:
            found = self._effects.get(key)
            if found is not None and found["holder"] == holder and found["output"] is None:
                del self._effects[key]

    # --- counters of core/count ----------------------------------------------------------------------------------

    def count(self, key: str, packet: str) -> int:
        with self._lock:
            self._counted.setdefault(key, set()).add(packet)
            return self.counter(key)

    def counter(self, key: str) -> int:
        with self._lock:
            return len(self._counted.get(key, ()))

"""The durable store on MongoDB.

Nothing here needs a transaction, so a single server is enough. Whatever must be one step is one write that a unique
index or a compare-and-set decides: version numbers, event chunks and counters are taken by trying the next one, and
whoever comes second tries the one after. Fields that repeat what such a write decided may lag behind a crash and are
brought up by the next call.
"""

# Long because: one adapter of one port; each method is a screen at most.
from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import pymongo
from pymongo import DESCENDING, IndexModel, ReturnDocument
from pymongo.collection import Collection as MongoCollection
from pymongo.errors import DuplicateKeyError

from app.clock import Clock, system_clock
from app.errors import Conflict, NotFound, RevConflict
from app.models.deployment import Deployment
from app.models.event import Event
from app.models.flow import Flow, FlowVersion, version_id_of
from app.models.json_value import dumps
from app.models.run import Run, RunStatus
from app.ports import JournalPage, KeyClaim, Page, RunFilter
from app.store import records
from app.store.mongo_client import LazyClient, translating
from app.store.records import Document

R = TypeVar("R")

DEFAULT_DATABASE: Final = "rolecall"
PREPARE_TIMEOUT_S: Final = 30.0
PAGE_CHARS: Final = 8_000_000
"""A page of runs ends early at this much JSON text, so that fifty runs with inputs of megabytes are no danger."""

_INDEXES: Final[Mapping[str, list[IndexModel]]] = {
    "versions": [
        IndexModel([("flowId", 1), ("number", 1)], unique=True),
        IndexModel([("flowId", 1), ("contentHash", 1)], unique=True),
    ],
    "deployments": [IndexModel([("flows", 1), ("_id", 1)])],
    "runs": [
        # `$gt ""` is what both MongoDB and the embedded server see implied by equality with a key.
        IndexModel(
            [("deployment", 1), ("idempotencyKey", 1)],
            unique=True,
            partialFilterExpression={"idempotencyKey": {"$gt": ""}},
        ),
        # Every filter alone is a walk along one index in the order of the list. Each index slows every run down, so
        # that several filters together walk the index of one of them and look at the others (`run_stages`). Ascending:
        # in descending indexes the embedded server loses texts that begin with a bound of the range.
        IndexModel([("position", 1)]),
        *(IndexModel([(name, 1), ("position", 1)]) for name in ("deployment", "variant", "role", "status", "session")),
    ],
    "events": [IndexModel([("runId", 1), ("last", 1)])],
    "journal": [IndexModel([("runId", 1), ("number", 1)], unique=True)],
    # The server itself forgets what has had its time.
    "effects": [IndexModel([("until", 1)], expireAfterSeconds=0)],
    "counted": [IndexModel([("key", 1), ("number", 1)], unique=True)],
}

_SPANS_MS: Final = [1000 * 8**power for power in range(8)]
_OPEN: Final = [status.value for status in RunStatus if not status.ended]


@translating
class MongoStore:
    """:class:`app.ports.Store` on MongoDB.

    Thread-safe. Connects on first use and anew in a forked child. Every call is over after ``timeout_s`` for each of
    its round trips, of which there are at most a few.
    """

    def __init__(self, url: str, timeout_s: float, *, clock: Clock = system_clock) -> None:
        self._client = LazyClient(url, timeout_s)
        self._clock = clock

    def _collection(self, name: str) -> MongoCollection[Document]:
        return self._client.get().get_default_database(DEFAULT_DATABASE)[name]

    def ping(self) -> None:
        self._collection("flows").find_one({}, {"_id": 1})

    def prepare(self) -> None:
        self.ping()
        with pymongo.timeout(PREPARE_TIMEOUT_S):
            for name, indexes in _INDEXES.items():
                self._collection(name).create_indexes(indexes)
            self._note_flows()

    def _note_flows(self) -> None:
        """Bring deployments that an older version stored to the shape of today."""
        deployments = self._collection("deployments")
        for found in list(deployments.find({"flows": {"$exists": False}, "deployment": {"$ne": None}})):
            flows = records.deployment_document(records.deployment_of(found))["flows"]
            deployments.update_one({"_id": found["_id"], "rev": found["rev"]}, {"$set": {"flows": flows}})

    def close(self) -> None:
        self._client.close()

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
        flow = self.get_flow(flow_id)
        known = 0 if flow is None else flow.versions
        number, created = known, False
        while (version := self.get_version(flow_id, version_id_of(content_hash))) is None:
            number += 1
            version = FlowVersion(
                flow_id=flow_id,
                version_id=version_id_of(content_hash),
                number=number,
                content_hash=content_hash,
                document=dict(document),
                flow_name=flow_name,
                needs=needs,
                created_at=now,
            )
            try:
                self._collection("versions").insert_one(
                    {"_id": f"{flow_id}:{version.version_id}"} | records.version_document(version)
                )
            except DuplicateKeyError:
                continue  # the number is taken, or somebody else saved this very version
            created = True
            break
        if version.content_hash != content_hash:
            raise Conflict(f"flow {flow_id!r} has another document under the version id {version.version_id!r}")
        if version.number > known:
            self._note_version(version, title, now)
        return version, created

    def _note_version(self, version: FlowVersion, title: str, now: str) -> None:
        self._raise_to(
            "flows",
            version.flow_id,
            "versions",
            version.number,
            fields={"title": title, "updatedAt": now},
            first={"createdAt": now},
        )

    def _raise_to(
        self,
        name: str,
        ident: str,
        field: str,
        number: int,
        *,
        fields: Document | None = None,
        first: Document | None = None,
    ) -> None:
        """Set ``field`` to ``number``, and other fields with it, unless it is as high already."""
        lower = {"_id": ident, field: {"$lt": number}}
        change: Document = {"$set": {field: number} | (fields or {})}
        try:
            self._collection(name).update_one(lower, change | {"$setOnInsert": first or {}}, upsert=True)
        except DuplicateKeyError:
            # It is there: as high already, or made lower by somebody in this very moment.
            self._collection(name).update_one(lower, change)

    def publish(self, flow_id: str, version_id: str, *, now: str) -> Flow:
        there = self._collection("versions").find_one({"_id": f"{flow_id}:{version_id}"}, {"_id": 1})
        if there is None and self.get_flow(flow_id) is not None:
            raise NotFound.of("version", version_id)
        flow = there and self._collection("flows").find_one_and_update(
            {"_id": flow_id},
            {"$set": {"publishedVersionId": version_id, "updatedAt": now}},
            return_document=ReturnDocument.AFTER,
        )
        if flow is None:
            raise NotFound.of("flow", flow_id)
        return records.flow_of(flow)

    def get_flow(self, flow_id: str) -> Flow | None:
        return self.get_flows([flow_id]).get(flow_id)

    def get_flows(self, flow_ids: Collection[str]) -> dict[str, Flow]:
        found = self._collection("flows").find({"_id": {"$in": list(flow_ids)}})
        return {flow["_id"]: records.flow_of(flow) for flow in found}

    def list_flows(self, *, after: str | None = None, limit: int = 100) -> Page[Flow]:
        return self._by_id("flows", {}, records.flow_of, after, limit)

    def _by_id(
        self, name: str, where: Document, read: Callable[[Document], R], after: str | None, limit: int
    ) -> Page[R]:
        later = {} if after is None else {"_id": {"$gt": after}}
        found = self._collection(name).find(where | later).sort("_id", 1).limit(limit + 1)
        return records.page(list(found), limit, read, lambda document: str(document["_id"]))

    def get_version(self, flow_id: str, version_id: str) -> FlowVersion | None:
        found = self._collection("versions").find_one({"_id": f"{flow_id}:{version_id}"})
        return None if found is None else records.version_of(found)

    def list_versions(self, flow_id: str, *, after: str | None = None, limit: int = 100) -> Page[FlowVersion]:
        before = records.read_number_cursor(after)
        older = {} if before is None else {"number": {"$lt": before}}
        found = (
            self._collection("versions").find({"flowId": flow_id} | older).sort("number", DESCENDING).limit(limit + 1)
        )
        return records.page(list(found), limit, records.version_of, lambda version: str(version["number"]))

    # --- deployments ---------------------------------------------------------------------------------------------

    def put_deployment(self, deployment: Deployment) -> None:
        document = records.deployment_document(deployment)
        deployments = self._collection("deployments")
        if deployment.rev == 1:
            try:
                deployments.insert_one(document)
            except DuplicateKeyError:
                raise self._rev_conflict(deployment) from None
        elif not deployments.replace_one({"_id": deployment.id, "rev": deployment.rev - 1}, document).matched_count:
            raise self._rev_conflict(deployment)

    def _rev_conflict(self, deployment: Deployment) -> RevConflict:
        current = self.get_deployment(deployment.id)
        given = deployment.rev - 1 or None
        return RevConflict(deployment.id, current=None if current is None else current.rev, given=given)

    def get_deployment(self, deployment_id: str) -> Deployment | None:
        found = self._collection("deployments").find_one({"_id": deployment_id, "deployment": {"$ne": None}})
        return None if found is None else records.deployment_of(found)

    def deployment_rev(self, deployment_id: str) -> int:
        found = self._collection("deployments").find_one({"_id": deployment_id}, {"rev": 1})
        return 0 if found is None else int(found["rev"])

    def list_deployments(
        self, *, flow: str | None = None, after: str | None = None, limit: int = 100
    ) -> Page[Deployment]:
        # What was deleted uses no flow; the embedded server would not walk the index beside a `$ne`.
        there: Document = {"deployment": {"$ne": None}} if flow is None else {"flows": flow}
        return self._by_id("deployments", there, records.deployment_of, after, limit)

    def delete_deployment(self, deployment_id: str) -> bool:
        there = {"_id": deployment_id, "deployment": {"$ne": None}}
        change = {"$set": {"deployment": None, "flows": []}, "$inc": {"rev": 1}}
        return self._collection("deployments").update_one(there, change).matched_count == 1

    # --- the ledger ----------------------------------------------------------------------------------------------

    def insert_run(self, run: Run) -> Run | None:
        try:
            self._collection("runs").insert_one(records.run_document(run))
        except DuplicateKeyError:
            if run.idempotency_key is None:
                return None
            known = self.find_run(run.deployment_id, run.idempotency_key)
            return None if known is None or known.run_id == run.run_id else known
        return None

    def get_run(self, run_id: str) -> Run | None:
        return self._one_run({"_id": run_id})

    def find_run(self, deployment_id: str, idempotency_key: str) -> Run | None:
        return self._one_run({"deployment": deployment_id, "idempotencyKey": idempotency_key})

    def _one_run(self, where: Document) -> Run | None:
        found = self._collection("runs").find_one(where)
        return None if found is None else records.run_of(found)

    def mirror_run(self, run: Run) -> bool:
        return self._follow(run, {})

    def refuse_run(self, run: Run) -> bool:
        return self._follow(run, {"$unset": {"idempotencyKey": ""}})

    def _follow(self, run: Run, more: Document) -> bool:
        older = {"_id": run.run_id, "rev": {"$lt": run.rev}, "status": {"$in": _OPEN}}
        change = {"$set": records.run_changes(run)} | more
        return self._collection("runs").update_one(older, change).matched_count == 1

    def request_cancel(self, run_id: str) -> None:
        open_one = {"_id": run_id, "status": {"$in": _OPEN}}
        self._collection("runs").update_one(open_one, {"$set": {"cancel": True}})

    def ended_runs(self, run_ids: Sequence[str]) -> set[str]:
        ended = {"_id": {"$in": list(run_ids)}, "status": {"$nin": _OPEN}}
        return {document["_id"] for document in self._collection("runs").find(ended, {"_id": 1})}

    def list_runs(self, where: RunFilter, *, after: str | None = None, limit: int = 50) -> Page[Run]:
        places, more = self._places(where, records.read_cursor(after), limit)
        found = self._collection("runs").find({"_id": {"$in": [place["_id"] for place in places]}})
        runs = {document["_id"]: records.run_of(document) for document in found}
        items = [run for place in places if (run := runs.get(place["_id"])) is not None]
        return Page(items, records.cursor_of(places[-1]["position"]) if more else None)

    def _places(self, where: RunFilter, before: str | None, limit: int) -> tuple[list[Document], bool]:
        """Return where the runs of a page are, and whether others follow."""
        places: list[Document] = []
        size = 0
        for window in _windows(before, system_clock()):
            page: list[Document] = [
                {"$sort": {"position": DESCENDING}},
                {"$limit": limit + 1 - len(places)},
                {"$project": {"position": 1, "size": 1, "inputSize": 1}},
            ]
            for place in self._collection("runs").aggregate(run_stages(where, window) + page):
                size += place["size"] + place["inputSize"]
                if len(places) == limit or (places and size > PAGE_CHARS):
                    return places, True
                places.append(place)
        return places, False

    def append_events(self, run_id: str, events: Sequence[Event]) -> None:
        records.check_sequence(run_id, events)
        left = list(events)
        while left:
            stored = self._stored_seq(run_id, left[0].seq - 1)
            records.check_joins(run_id, stored, left)
            left = [event for event in left if event.seq > stored]
            for chunk in records.event_chunks(run_id, left):
                # Its id names its first event, and it begins where the one before ends: so chunks can only be a chain.
                try:
                    self._collection("events").insert_one(chunk)
                except DuplicateKeyError:
                    break
            else:
                return

    def _stored_seq(self, run_id: str, at_least: int) -> int:
        """Return the number of the last stored event; 0 if even ``at_least`` is not stored."""
        where = {"runId": run_id, "last": {"$gte": at_least}}
        found = self._collection("events").find(where, {"last": 1}).sort("last", DESCENDING).limit(1)
        return next((int(chunk["last"]) for chunk in found), 0)

    def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        events: list[Event] = []
        with self._collection("events").find({"runId": run_id, "last": {"$gt": after}}).sort("last", 1) as chunks:
            for chunk in chunks:
                events += (event for event in records.events_of(chunk) if event.seq > after)
                if len(events) >= limit:
                    break
        return events[:limit]

    def drop_events(self, run_id: str) -> None:
        self._collection("events").delete_many({"runId": run_id})

    # --- the journal of a run, idempotency keys of nodes ---------------------------------------------------------

    def journal(self, run_id: str) -> list[JournalPage]:
        with self._collection("journal").find({"runId": run_id}).sort("number", 1) as found:
            return [JournalPage(page["number"], page["attempt"], page["writer"], page["text"]) for page in found]

    def journal_put(self, run_id: str, page: JournalPage) -> bool:
        place = {"runId": run_id, "number": page.number}
        written = {"attempt": page.attempt, "writer": page.writer, "text": page.text}
        try:
            self._collection("journal").insert_one({"_id": f"{run_id}:{page.number}"} | place | written)
        except DuplicateKeyError:
            return self._collection("journal").find_one(place | {"writer": page.writer}, {"_id": 1}) is not None
        return True

    def drop_journal(self, run_id: str) -> None:
        self._collection("journal").delete_many({"runId": run_id})

    def claim_key(self, key: str, *, holder: str, ttl_ms: int) -> KeyClaim:
        effects = self._collection("effects")
        while True:
            now = self._now()
            free = {"_id": key, "$or": [{"until": {"$lte": now}}, {"holder": holder, "output": None}]}
            claimed = {"holder": holder, "output": None, "until": now + timedelta(milliseconds=ttl_ms)}
            try:
                effects.update_one(free, {"$set": claimed}, upsert=True)
            except DuplicateKeyError:
                found = effects.find_one({"_id": key, "until": {"$gt": now}})
                if found is None:
                    continue  # given up in this very moment
                output = found["output"]
                return KeyClaim("taken") if output is None else KeyClaim("kept", output)
            return KeyClaim("mine")

    def keep_output(self, key: str, *, holder: str, output: str, ttl_ms: int) -> bool:
        kept = {"output": output, "until": self._now() + timedelta(milliseconds=ttl_ms)}
        return self._collection("effects").update_one({"_id": key, "holder": holder}, {"$set": kept}).matched_count == 1

    def release_key(self, key: str, *, holder: str) -> None:
        self._collection("effects").delete_one({"_id": key, "holder": holder, "output": None})

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock() / 1000, UTC)

    # --- counters of core/count ----------------------------------------------------------------------------------

    def count(self, key: str, packet: str) -> int:
        number = self._noted_count(key)
        mark = dumps([key, packet])
        counted = self._collection("counted")
        while True:
            number += 1
            try:
                counted.insert_one({"_id": mark, "key": key, "number": number})
            except DuplicateKeyError:
                if counted.find_one({"_id": mark}, {"_id": 1}) is not None:
                    return self.counter(key)
            else:
                self._raise_to("counters", key, "count", number)
                return number

    def counter(self, key: str) -> int:
        number = self._noted_count(key)
        while self._collection("counted").find_one({"key": key, "number": number + 1}, {"_id": 1}) is not None:
            number += 1
        return number

    def _noted_count(self, key: str) -> int:
        noted = self._collection("counters").find_one({"_id": key})
        return 0 if noted is None else int(noted["count"])


# --- queries of runs -------------------------------------------------------------------------------------------------


def run_stages(where: RunFilter, window: Document) -> list[Document]:
    """Return the stages that find the runs of a filter inside a range of positions.

    First one field and the range, which is a walk along an index, then the others. MongoDB makes one query of stages
    that follow each other. The embedded server looks no further than the first for an index, and finds none where a
    third field stands beside the range.
    """
    fields = list(records.run_filter(where).items())
    walked, looked_at = dict(fields[:1]) | {"position": window}, dict(fields[1:])
    return [{"$match": walked}, *([{"$match": looked_at}] if looked_at else [])]


def _windows(before: str | None, now_ms: int) -> Iterator[Document]:
    """Yield ranges of positions, newest first, longer and longer, back to the beginning.

    MongoDB walks an index and stops at the limit, however long the range is. The embedded server fetches and sorts
    all of a range first; with short ranges it can be asked while thousands of runs are made.
    """
    upper, end_ms = before, int(before[:15]) if before else now_ms
    for span_ms in _SPANS_MS:
        end_ms = max(0, end_ms - span_ms)
        lower = f"{end_ms:015d}"
        yield {"$gte": lower} if upper is None else {"$gte": lower, "$lt": upper}
        upper = lower
    yield {"$lt": upper}

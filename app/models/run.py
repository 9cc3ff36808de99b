"""Runs: one execution of one version of a flow, as the live state and the ledger both hold it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from app.clock import from_rfc3339, to_rfc3339
from app.models.base import Request

RUN_SCHEMA = 1
MAX_PRIORITY = 9


class RunStatus(StrEnum):
    """Where a run is in its life; the last three never change again."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in _ENDED


_ENDED = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})


class RunRequest(Request):
    """The body of ``POST /api/v1/deployments/<id>/runs`` and the kwargs of ``flow.dispatch``."""

    input: dict[str, Any] = Field(default_factory=dict)
    """The packet that enters the flow."""
    meta: dict[str, Any] = Field(default_factory=dict)
    """About the caller: ``session_id``, ``user_id`` and whatever flows want to read."""
    idempotency_key: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    expires_at: str | None = None
    """RFC 3339: a run that has not started by then ends as failed."""
    priority: Annotated[int, Field(ge=0, le=MAX_PRIORITY)] = 0
    """Higher goes first within its role."""


@dataclass(frozen=True, slots=True)
class WorkerRef:
    """Which process works on a run."""

    instance_id: str
    node: str
    role: str

    def to_wire(self) -> dict[str, str]:
        return {"instance_id": self.instance_id, "node": self.node, "role": self.role}

    @classmethod
    def from_wire(cls, wire: dict[str, str]) -> WorkerRef:
        return cls(wire["instance_id"], wire["node"], wire["role"])


@dataclass(frozen=True, slots=True)
class RunError:
    """Why a run failed. ``code`` is stable (``worker_lost``, ``timed_out``, ``PERMANENT``, ...)."""

    code: str
    message: str
    attempt: int
    node: str | None = None

    def to_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {"code": self.code, "message": self.message, "attempt": self.attempt}
        if self.node is not None:
            wire["node"] = self.node
        return wire

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> RunError:
        return cls(wire["code"], wire["message"], wire["attempt"], wire.get("node"))


@dataclass(frozen=True, slots=True)
class Run:
    """A run. Fields up to ``retry_of`` are on the wire; the rest is how Rolecall keeps it.

    Times are milliseconds of the live store's clock. The lease token is not here: it stays between the live store
    and the process that holds it.
    """

    run_id: str
    deployment_id: str
    variant: str
    flow_id: str
    version_id: str
    target_role: str
    created_ms: int
    status: RunStatus = RunStatus.QUEUED
    attempt: int = 1
    losses: int = 0
    input: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    output: Any = None
    error: RunError | None = None
    worker: WorkerRef | None = None
    explain: dict[str, Any] | None = None
    started_ms: int | None = None
    """When the first attempt started."""
    ended_ms: int | None = None
    waiting_for: str | None = None
    retry_of: str | None = None

    priority: int = 0
    expires_ms: int | None = None
    seq: int = 0
    """The number of the last event."""
    rev: int = 0
    """Counts changes of the live state; the mirror in the ledger only moves forward."""
    not_before_ms: int = 0
    """A pause before the next attempt: no claim before this time."""
    retries: int = 0
    """Attempts that ran out of time and were allowed another; losses and hand-backs are not among them."""
    epoch: int = 0
    """How often its live state was lost and made anew, each time with events that count from 1 again."""
    excluded: tuple[str, ...] = ()
    """Instances that handed this run back because they cannot run it."""
    cancel_requested: bool = False
    validation: str = "warn"
    """The deployment's rule about packets, as it was when the run was accepted."""
    target_roles: tuple[str, ...] = ()
    """Roles that the variant allows; empty: any. A later attempt may only go to one of these."""
    idempotency_key: str | None = None
    body_hash: str | None = None
    input_in_ledger: bool = False
    """The input is too large for the live state and is read from the ledger; ``input`` is empty here."""
    schema: int = RUN_SCHEMA

    @property
    def ended(self) -> bool:
        return self.status.ended

    def with_(self, **changes: Any) -> Run:
        """Return a copy with some fields changed."""
        return replace(self, **changes)

    def to_wire(self) -> dict[str, Any]:
        """Return the run as answers show it."""
        wire: dict[str, Any] = {
            "runId": self.run_id,
            "deploymentId": self.deployment_id,
            "variant": self.variant,
            "flowId": self.flow_id,
            "versionId": self.version_id,
            "targetRole": self.target_role,
            "status": self.status.value,
            "attempt": self.attempt,
            "losses": self.losses,
            "input": self.input,
            "meta": self.meta,
            "output": self.output,
            "error": None if self.error is None else self.error.to_wire(),
            "worker": None if self.worker is None else self.worker.to_wire(),
            "explain": self.explain,
            "createdAt": to_rfc3339(self.created_ms),
            "startedAt": None if self.started_ms is None else to_rfc3339(self.started_ms),
            "endedAt": None if self.ended_ms is None else to_rfc3339(self.ended_ms),
        }
        if self.waiting_for is not None:
            wire["waitingFor"] = self.waiting_for
        if self.retry_of is not None:
            wire["retryOf"] = self.retry_of
        return wire

    def to_record(self) -> dict[str, Any]:
        """Return the whole run as one JSON object, for stores: the wire form plus what Rolecall keeps."""
        return self.to_wire() | {
            "priority": self.priority,
            "expiresMs": self.expires_ms,
            "createdMs": self.created_ms,
            "startedMs": self.started_ms,
            "endedMs": self.ended_ms,
            "seq": self.seq,
            "rev": self.rev,
            "notBeforeMs": self.not_before_ms,
            "retries": self.retries,
            "epoch": self.epoch,
            "excluded": list(self.excluded),
            "cancelRequested": self.cancel_requested,
            "validation": self.validation,
            "targetRoles": list(self.target_roles),
            "idempotencyKey": self.idempotency_key,
            "bodyHash": self.body_hash,
            "inputInLedger": self.input_in_ledger,
            "schema": self.schema,
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Run:
        """Read what :meth:`to_record` wrote; fields of a newer schema are ignored."""
        error, worker = record.get("error"), record.get("worker")
        return cls(
            run_id=record["runId"],
            deployment_id=record["deploymentId"],
            variant=record["variant"],
            flow_id=record["flowId"],
            version_id=record["versionId"],
            target_role=record["targetRole"],
            created_ms=record["createdMs"],
            status=RunStatus(record["status"]),
            attempt=record["attempt"],
            losses=record["losses"],
            input=record["input"],
            meta=record["meta"],
            output=record["output"],
            error=None if error is None else RunError.from_wire(error),
            worker=None if worker is None else WorkerRef.from_wire(worker),
            explain=record.get("explain"),
            started_ms=record["startedMs"],
            ended_ms=record["endedMs"],
            waiting_for=record.get("waitingFor"),
            retry_of=record.get("retryOf"),
            priority=record["priority"],
            expires_ms=record["expiresMs"],
            seq=record["seq"],
            rev=record["rev"],
            not_before_ms=record["notBeforeMs"],
            retries=record.get("retries") or 0,
            epoch=record.get("epoch") or 0,
            excluded=tuple(record["excluded"]),
            cancel_requested=record["cancelRequested"],
            validation=record["validation"],
            target_roles=tuple(record["targetRoles"]),
            idempotency_key=record["idempotencyKey"],
            body_hash=record["bodyHash"],
            input_in_ledger=record["inputInLedger"],
            schema=record["schema"],
        )


def read_expiry(text: str | None) -> int | None:
    """Read a request's ``expiresAt`` (RFC 3339 with an offset) as milliseconds.

    Raises:
        ValueError: it is no such time.
    """
    return None if text is None else from_rfc3339(text)

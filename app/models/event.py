"""Events: the steps of a run's life, numbered from 1 without gaps inside the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.clock import from_rfc3339, to_rfc3339

RUN_QUEUED = "run.queued"
RUN_STARTED = "run.started"
RUN_RETRYING = "run.retrying"
RUN_REROUTED = "run.rerouted"
RUN_COMPLETED = "run.completed"
RUN_FAILED = "run.failed"
RUN_CANCELLED = "run.cancelled"
NODE_STARTED = "node.started"
NODE_PROGRESS = "node.progress"
NODE_TOKEN = "node.token"  # noqa: S105 - a token of a model's answer, no secret
NODE_COMPLETED = "node.completed"
NODE_FAILED = "node.failed"
NODE_SKIPPED = "node.skipped"
LOG = "log"

TERMINAL = frozenset({RUN_COMPLETED, RUN_FAILED, RUN_CANCELLED})
"""The last event of a run is one of these, and there is exactly one."""

DROPPABLE = frozenset({NODE_PROGRESS, NODE_TOKEN, LOG})
"""What may be dropped, before it gets a number, once a run has had its share of events."""


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event before the live store has given it a number and a time."""

    type: str
    node: str | None = None
    data: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the log. ``at_ms`` is the live store's time; ``seq`` counts from 1."""

    run_id: str
    seq: int
    attempt: int
    type: str
    at_ms: int
    node: str | None = None
    data: dict[str, Any] | None = None

    @property
    def terminal(self) -> bool:
        return self.type in TERMINAL

    def to_wire(self) -> dict[str, Any]:
        """Return the wire form: ``run_id, seq, attempt, type, at, node?, data?``."""
        wire: dict[str, Any] = {
            "run_id": self.run_id,
            "seq": self.seq,
            "attempt": self.attempt,
            "type": self.type,
            "at": to_rfc3339(self.at_ms),
        }
        if self.node is not None:
            wire["node"] = self.node
        if self.data is not None:
            wire["data"] = self.data
        return wire

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Event:
        """Read the wire form; types that this version does not know pass through."""
        return cls(
            run_id=wire["run_id"],
            seq=wire["seq"],
            attempt=wire["attempt"],
            type=wire["type"],
            at_ms=from_rfc3339(wire["at"]),
            node=wire.get("node"),
            data=wire.get("data"),
        )

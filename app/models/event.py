"""Events: the steps of a run's life, numbered from 1 without gaps inside the run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from app.clock import from_rfc3339, to_rfc3339
from app.models.json_value import MAX_SAFE_INTEGER

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

RESET = "reset"
"""The name of what a stream sends, in place of an event, to a reader whose story was lost."""

TERMINAL = frozenset({RUN_COMPLETED, RUN_FAILED, RUN_CANCELLED})
"""The last event of a run is one of these, and there is exactly one."""

DROPPABLE = frozenset({NODE_PROGRESS, NODE_TOKEN, LOG})
"""What may be dropped, before it gets a number, once a run has had its share of events."""

_PLACE = re.compile(r"(?:(?P<epoch>[0-9]{1,18}):)?(?P<seq>[0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event before the live store has given it a number and a time."""

    type: str
    node: str | None = None
    data: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """How far a reader of a run's log has come: it has the events of story ``epoch`` up to ``seq`` (0: none)."""

    seq: int = 0
    epoch: int = 0

    def __str__(self) -> str:
        return f"{self.epoch}:{self.seq}" if self.epoch else str(self.seq)

    def to_wire(self) -> int | str:
        """Return the wire form: a number, or ``"epoch:seq"`` once the live state was lost."""
        return str(self) if self.epoch else self.seq

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read ``seq`` or ``epoch:seq``.

        Raises:
            ValueError: it is neither.
        """
        found = _PLACE.fullmatch(text)
        if found is None or not all(int(number or 0) <= MAX_SAFE_INTEGER for number in found.groups()):
            raise ValueError(f"must be the id of an event, like 12 or 1:12, not {text[:40]!r}")
        return cls(int(found["seq"]), int(found["epoch"] or 0))


START = Place()
"""The place of a reader that has nothing."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the log. ``at_ms`` is the live store's time; ``seq`` counts from 1.

    ``epoch``: how often the run's live state had been lost and made anew; each time the story begins again at 1.
    """

    run_id: str
    seq: int
    attempt: int
    type: str
    at_ms: int
    node: str | None = None
    data: dict[str, Any] | None = None
    epoch: int = 0

    @property
    def place(self) -> Place:
        """The place of a reader that has come up to this event."""
        return Place(self.seq, self.epoch)

    @property
    def terminal(self) -> bool:
        return self.type in TERMINAL

    def to_wire(self) -> dict[str, Any]:
        """Return the wire form: ``run_id, seq, attempt, type, at, node?, data?, epoch?`` (if it is not 0)."""
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
        if self.epoch:
            wire["epoch"] = self.epoch
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
            epoch=wire.get("epoch", 0),
        )

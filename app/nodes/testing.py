"""Running one handler alone, for the tests of its authors: no server, no flow, no waiting."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.errors import BadRequest
from app.models.event import NewEvent
from app.nodes.api import MARK, Handler, HandlerError
from app.nodes.step import Call, Step


@dataclass(slots=True)
class MemoryHost:
    """A world in memory: it keeps events, counts, and lets time pass only where somebody sleeps."""

    events: list[NewEvent] = field(default_factory=list)
    counters: dict[str, set[str]] = field(default_factory=dict)
    time: float = 0.0
    slept: list[float] = field(default_factory=list)
    wish: Callable[[], None] | None = None
    """Called by :meth:`check`: raise what the world wishes of the run."""
    is_cancelled: bool = False
    chance: float = 0.5
    """What :meth:`random` returns."""

    def emit(self, event: NewEvent) -> None:
        self.events.append(event)

    def check(self) -> None:
        if self.wish is not None:
            self.wish()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    def count(self, key: str, packet: str) -> int:
        self.counters.setdefault(key, set()).add(packet)
        return len(self.counters[key])

    def random(self) -> float:
        return self.chance

    def types(self) -> Counter[str]:
        """Return how many events there are of each type."""
        return Counter(event.type for event in self.events)


class _World(MemoryHost):
    secrets: Mapping[str, str]

    def secret(self, name: str) -> str | None:
        return self.secrets.get(name)

    def redact(self, text: str) -> str:
        return text

    def handler(self, step: Step, ref: str, settings: Mapping[str, Any]) -> Call:  # noqa: ARG002
        raise HandlerError(f"a handler alone cannot call another; {ref!r} needs a flow")


@dataclass(frozen=True, slots=True)
class Tried:
    """What a handler returned (its input, if ``None``) and told."""

    output: Any
    events: list[NewEvent]


def try_handler(
    function: Callable[[Step], Any],
    input: Any,
    *,
    settings: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
    secrets: Mapping[str, str] | None = None,
) -> Tried:
    """Call a decorated handler once, with its settings checked as at import; an ``async def`` one on a loop of its own.

    Raises:
        BadRequest: the settings are wrong.
    """
    registered: Handler = getattr(function, MARK)[0]
    parsed, faults = registered.read_settings(settings or {}, "/settings")
    if faults:
        raise BadRequest.of(faults)
    world = _World()
    world.secrets = secrets or {}
    step = Step(input=input, settings=parsed, meta=meta or {}, node="node", key="run:node", world=world)
    output = function(step)
    if inspect.iscoroutine(output):
        output = asyncio.run(output)
    return Tried(input if output is None else output, world.events)

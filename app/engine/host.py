"""What the engine needs from the world, and the ways in which the world takes a run from it."""

from __future__ import annotations

from typing import Protocol

from app.models.event import NewEvent
from app.ports import JournalPage, KeyClaim


class Interrupted(BaseException):
    """The run is to stop here, and it is not its own fault.

    No subclass of ``Exception``, so that no handler's ``except Exception`` holds it up.
    """


class Cancelled(Interrupted):
    """Somebody asked to cancel the run."""


class TimedOut(Interrupted):
    """The attempt has had its time."""


class Fenced(Interrupted):
    """The run is not ours any more; nothing that we say of it counts."""


class HandBack(Interrupted):
    """Another worker is to go on with the run. ``reason`` is one word, such as ``stopping``."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Host(Protocol):
    """The world of one attempt. Handlers of ``core/map`` use it from several threads; :meth:`emit` is called by one at
    a time.
    """

    def emit(self, event: NewEvent) -> None:
        """Take an event; must not block on a server."""

    def check(self) -> None:
        """Raise one of the :class:`Interrupted` if the run must stop; called before each node and in waits."""

    def cancelled(self) -> bool:
        """Return whether a handler should give up."""

    def now(self) -> float:
        """Return seconds of a clock that never goes back."""

    def sleep(self, seconds: float) -> None:
        """Wait, but no longer than until the run is cancelled."""

    def count(self, key: str, packet: str) -> int:
        """Add one to a durable counter, once for each ``packet``; return it."""

    def random(self) -> float:
        """Return a number from [0, 1), for the jitter of pauses."""


class Ledger(Protocol):
    """What the engine asks of the durable store (:class:`app.ports.Store`)."""

    def journal(self, run_id: str) -> list[JournalPage]: ...
    def journal_put(self, run_id: str, page: JournalPage) -> bool: ...
    def claim_key(self, key: str, *, holder: str, ttl_ms: int) -> KeyClaim: ...
    def keep_output(self, key: str, *, holder: str, output: str, ttl_ms: int) -> bool: ...
    def release_key(self, key: str, *, holder: str) -> None: ...

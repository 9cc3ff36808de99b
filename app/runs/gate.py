"""Whether a run can be taken in at all, asked before anything is written."""

from __future__ import annotations

from threading import Lock

from app.clock import Monotonic
from app.errors import OutOfMemory, ServerUnavailable, TooManyQueued
from app.ports import Dispatcher, Live


class Gate:
    """Asks the live store and the broker at most once a second, however many requests come.

    A bad answer is remembered as long as a good one: while Redis is frozen, one request a second waits for its
    time-out and the others are refused at once.
    """

    def __init__(
        self, live: Live, dispatcher: Dispatcher, *, monotonic: Monotonic, depth_cap: int, max_age_s: float = 1.0
    ) -> None:
        self._live = live
        self._dispatcher = dispatcher
        self._monotonic = monotonic
        self._depth_cap = depth_cap
        self._max_age_s = max_age_s
        self._lock = Lock()
        self._asked_at = float("-inf")
        self._fault: ServerUnavailable | None = None
        self._queued: dict[str, int] = {}

    def check(self, role: str) -> None:
        """Return if a run for ``role`` can be taken in.

        Raises:
            ServerUnavailable: Redis or the broker does not answer, or Redis is full.
            TooManyQueued: the role's queue is at its cap.
        """
        with self._lock:
            if self._monotonic() - self._asked_at > self._max_age_s:
                self._queued.clear()
                self._fault = self._ask()
                self._asked_at = self._monotonic()
            if self._fault is not None:
                raise self._fault.copy()
            queued = self._depth(role)
        if queued >= self._depth_cap:
            raise TooManyQueued(role, queued, self._depth_cap)

    def _ask(self) -> ServerUnavailable | None:
        try:
            if not self._live.headroom():
                return OutOfMemory("it is nearly full and would refuse new runs")
            self._dispatcher.ping()
        except ServerUnavailable as error:
            return error
        return None

    def _depth(self, role: str) -> int:
        """Return the role's depth as of this second, counting what was let in since."""
        if role not in self._queued:
            self._queued[role] = self._live.queues([role])[role].queued
        self._queued[role] += 1
        return self._queued[role] - 1

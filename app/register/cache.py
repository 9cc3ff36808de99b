"""A copy of the register's snapshot that many readers of one process share for a second."""

from __future__ import annotations

from threading import Lock

from app.clock import Monotonic
from app.errors import ServerUnavailable
from app.models.role import RegisterSnapshot
from app.ports import Register

_Answer = tuple[float, RegisterSnapshot | ServerUnavailable]
"""When it was so, on the monotonic clock, and what was said."""


class SnapshotCache:
    """Asks the register at most once at a time and once in ``max_age_s``, however many readers there are.

    A failure is kept as long as a snapshot is, so that of many requests to a frozen server one waits for the socket's
    time-out and the others do not. Safe to share between threads; make it after a fork.
    """

    def __init__(self, register: Register, monotonic: Monotonic, max_age_s: float = 1.0) -> None:
        self._register = register
        self._monotonic = monotonic
        self._max_age_s = max_age_s
        self._asking = Lock()
        self._answer: _Answer | None = None

    def get(self, max_age_s: float | None = None) -> tuple[RegisterSnapshot, int]:
        """Return a snapshot and its age in milliseconds; ``max_age_s``: one that is younger than usual.

        Raises:
            ServerUnavailable: the register could not be asked less than ``max_age_s`` ago.
        """
        answer, oldest_s = self._answer, self._max_age_s if max_age_s is None else max_age_s
        if answer is None or self._monotonic() - answer[0] > oldest_s:
            stale = answer
            with self._asking:
                # Whoever waited for the one who asked takes that answer, even if it was long in coming.
                answer = self._answer if self._answer is not stale else None
                answer = answer or self._ask()
        at, snapshot = answer
        if isinstance(snapshot, ServerUnavailable):
            raise snapshot.copy()
        return snapshot, max(0, round((self._monotonic() - at) * 1000))

    def _ask(self) -> _Answer:
        # A snapshot is as old as the question, a failure as the moment at which it was known.
        asked = self._monotonic()
        try:
            answer: _Answer = asked, self._register.snapshot()
        except ServerUnavailable as error:
            answer = self._monotonic(), error.copy()
        self._answer = answer
        return answer

"""The background thread of an executing process: sends what attempts have collected, and renews their leases."""

from __future__ import annotations

import logging
from threading import Condition, Thread

from app.clock import Monotonic
from app.runs.attempt import Attempt

logger = logging.getLogger(__name__)

TICK_S = 0.015
"""Events of one tick travel together: short enough to look live, long enough to cost little."""


class Flusher:
    """One thread for all attempts of a process. It starts with the first attempt, so that it is made after a fork."""

    def __init__(self, *, monotonic: Monotonic, lease_ttl_s: float) -> None:
        self._monotonic = monotonic
        self._ttl_ms = int(lease_ttl_s * 1000)
        self._poll_s = min(1.0, lease_ttl_s / 6)
        self._attempts: set[Attempt] = set()
        self._changed = Condition()
        self._poked = False
        # After a tick with work comes another one, during which nobody wakes the thread: where short runs follow each
        # other, that would cost each of them as much as a claim does.
        self._ticking = False
        self._closed = False
        self._thread: Thread | None = None

    def add(self, attempt: Attempt) -> None:
        """Look after an attempt until :meth:`discard`, or until its end is answered."""
        with self._changed:
            self._attempts.add(attempt)
            if self._thread is None:
                self._thread = Thread(target=self._run, name="flusher", daemon=True)
                self._thread.start()

    def discard(self, attempt: Attempt) -> None:
        with self._changed:
            self._attempts.discard(attempt)

    def poke(self) -> None:
        """Something was collected: flush within a tick."""
        if self._poked:
            return
        with self._changed:
            self._poked = True
            if not self._ticking:
                self._changed.notify()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(5)

    def _run(self) -> None:
        poll_at = self._monotonic() + self._poll_s
        while self._wait(poll_at):
            polling = self._monotonic() >= poll_at
            with self._changed:
                self._poked = False
                attempts = list(self._attempts)
            for attempt in attempts:
                try:
                    attempt.flush()
                    if polling:
                        attempt.poll(ttl_ms=self._ttl_ms)
                    if attempt.over:
                        self.discard(attempt)
                except Exception:
                    # One attempt's fault must not silence the others; its own lease will tell.
                    logger.exception("could not flush run %s", attempt.run.run_id)
            if polling:
                poll_at = self._monotonic() + self._poll_s

    def _wait(self, poll_at: float) -> bool:
        """Sleep until there is work; return false when closed."""
        with self._changed:
            if self._ticking:
                self._tick()
            if not self._poked:
                self._ticking = False
            while not (self._closed or self._poked):
                left = poll_at - self._monotonic()
                if self._attempts and left <= 0:
                    return True
                self._changed.wait(left if left > 0 else self._poll_s)
            if not self._ticking:
                self._ticking = True
                self._tick()
            return not self._closed

    def _tick(self) -> None:
        self._changed.wait_for(lambda: self._closed, TICK_S)

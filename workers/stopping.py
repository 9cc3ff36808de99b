"""The end of a worker: what still executes when its time is over is handed back, and the process ends all the same."""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Event as Flag
from threading import Thread
from typing import Literal

from app.clock import Monotonic

logger = logging.getLogger(__name__)

COLD_S = 2.0
"""How long a cold stop may take after the runs are handed back; a pool of threads would wait for its nodes."""

Word = Literal["warm", "cold", "ended"]


class Stopping:
    """Waits in a thread for the stop of this worker and sees it through, whatever the worker's loop is busy with.

    ``announce`` says to the register that this worker drains, ``give_back`` hands back what it executes, ``end`` ends
    the process and its children at once. A warm stop has ``deadline_s`` seconds; a cold one hands back first.
    """

    def __init__(
        self,
        *,
        deadline_s: float,
        announce: Callable[[], None],
        give_back: Callable[[], None],
        end: Callable[[], None],
        monotonic: Monotonic,
    ) -> None:
        self._deadline_s = deadline_s
        self._announce = announce
        self._give_back = give_back
        self._end = end
        self._monotonic = monotonic
        # Its put() may be called by a signal's handler in the middle of another put().
        self._words: SimpleQueue[Word] = SimpleQueue()
        self._given_back = Flag()

    def start(self) -> None:
        Thread(target=self.run, name="stopping", daemon=True).start()

    def warm(self) -> None:
        """The worker has been told to stop. Harmless when repeated; may be called by a signal's handler."""
        self._words.put("warm")

    def cold(self) -> None:
        """The worker has been told to stop at once; return when its runs are handed back, or take too long for that."""
        self._words.put("cold")
        self._given_back.wait(COLD_S)

    def ended(self) -> None:
        """The worker has stopped by itself."""
        self._words.put("ended")

    def run(self) -> None:
        """Wait for what comes, and do it; returns if the worker stops by itself in time."""
        word: Word | None = self._words.get()
        if word == "warm":
            until = self._monotonic() + self._deadline_s
            self._announce()
            word = self._next_until(until)
        if word == "ended":
            return
        self._give_back()
        self._given_back.set()
        if word == "cold" and self._next_until(self._monotonic() + COLD_S) == "ended":
            return
        self._end()

    def _next_until(self, until: float) -> Word | None:
        """Return the next word that is not one more ``warm``, or ``None`` when the time is over."""
        word: Word = "warm"
        while word == "warm":
            try:
                word = self._words.get(timeout=max(0.0, until - self._monotonic()))
            except Empty:
                return None
        return word

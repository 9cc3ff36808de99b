"""One reading of a run's log for all readers of this process who are at the same place in it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from app.models.event import Place
from app.runs.log import LogPage


@dataclass(slots=True)
class _Reading:
    """What goes on at a place in a run's log while somebody reads there."""

    turn: threading.Lock = field(default_factory=threading.Lock)
    """Held by the one who reads."""
    readers: int = 0
    begun: int = 0
    """Readings that have begun."""
    outcome: LogPage | Exception | None = None
    """What the last of them brought; nothing while it goes on, or if it was cut off."""


class SharedLog:
    """Lets readers share what they would otherwise all read at once, when an event rings the bell of each.

    Nobody is given a reading that began before they asked, so whoever asks after a ring gets what it rang for. Those
    who come while a reading goes on share the next one: two readings serve any number of readers. If one fails, it
    fails for all who share it. A page is kept only while somebody is about to take it. For threads and greenlets.
    """

    def __init__(self, read: Callable[[str, Place, int], LogPage]) -> None:
        """``read`` takes a run's id, the place of the reader, and a limit."""
        self._read = read
        self._lock = threading.Lock()
        self._places: dict[tuple[str, Place, int], _Reading] = {}

    def read(self, run_id: str, after: Place, limit: int) -> LogPage:
        """Return what the log has after a place; raises what the reading raises."""
        key = run_id, after, limit
        with self._lock:
            place = self._places.setdefault(key, _Reading())
            place.readers += 1
            before = place.begun
        try:
            with place.turn:
                if place.begun == before or place.outcome is None:
                    self._fill(place, key)
                outcome = place.outcome
        finally:
            with self._lock:
                place.readers -= 1
                if not place.readers:
                    del self._places[key]
        if isinstance(outcome, Exception):
            raise outcome.with_traceback(None)
        assert outcome is not None
        return outcome

    def _fill(self, place: _Reading, key: tuple[str, Place, int]) -> None:
        place.outcome = None
        place.begun += 1
        try:
            place.outcome = self._read(*key)
        except Exception as error:  # everybody who shares it raises it
            place.outcome = error

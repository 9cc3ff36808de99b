"""The log of a run, wherever it lies: in the live state while there is one, afterwards in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.errors import NotFound, ServerUnavailable
from app.models.event import Event
from app.ports import Live, Store


@dataclass(frozen=True, slots=True)
class LogPage:
    """What a reader of a run's log got. It may be shared with other readers: look, do not change."""

    events: Sequence[Event]
    over: bool
    """Nothing will ever come after these events."""
    more: bool = False
    """What comes next may be there already: read on rather than wait for a ring."""


class RunLog:
    """Reads the logs of runs. Thread-safe."""

    def __init__(self, live: Live, store: Store) -> None:
        self._live = live
        self._store = store

    def read(self, run_id: str, *, after: int = 0, limit: int = 1000) -> LogPage:
        """Return events with ``seq`` > ``after``, in order: 1 round trip to Redis, 2 if there are none.

        MongoDB is asked only about runs that have no live state (any more), or while Redis is away.

        Raises:
            NotFound: ``run_not_found``.
            ServerUnavailable: Redis is away and the ledger does not have the rest of the story.
        """
        try:
            if events := self._live.events(run_id, after=after, limit=limit):
                return LogPage(events, over=events[-1].terminal, more=len(events) == limit)
            run, away = self._live.get(run_id), None
        except ServerUnavailable as error:
            run, away = None, error
        if run is None:
            return self._recorded(run_id, after, limit, away)
        # What was written between the two questions rings the bell.
        return LogPage((), over=run.ended and run.seq <= after)

    def _recorded(self, run_id: str, after: int, limit: int, away: ServerUnavailable | None) -> LogPage:
        if events := self._store.events(run_id, after=after, limit=limit):
            return LogPage(events, over=events[-1].terminal, more=not events[-1].terminal)
        run = self._store.get_run(run_id)
        if run is None:
            raise NotFound.of("run", run_id)
        if away is not None and not (run.ended and run.seq <= after):
            # "Nothing new" would be a guess: whoever follows the run must ask again, not wait for a ring.
            raise away
        # A live state goes only when the ledger has all of it, or with the whole of Redis.
        return LogPage((), over=run.ended)

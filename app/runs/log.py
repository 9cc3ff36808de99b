"""The log of a run, wherever it lies: in the live state while there is one, afterwards in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.errors import NotFound, ServerUnavailable
from app.models.event import START, Event, Place
from app.ports import Live, Store


@dataclass(frozen=True, slots=True)
class LogPage:
    """What a reader of a run's log got. It may be shared with other readers: look, do not change."""

    events: Sequence[Event]
    over: bool
    """Nothing will ever come after these events."""
    more: bool = False
    """What comes next may be there already: read on rather than wait for a ring."""
    epoch: int = 0
    """The epoch of these events; without any, the run's."""
    reset: bool = False
    """The reader's place was in a story that was lost. These are the first events of the one that took its place."""

    def place(self, before: Place) -> Place:
        """Return how far a reader has come with this page who was at ``before``."""
        if self.events:
            return self.events[-1].place
        return Place(0 if self.reset else before.seq, self.epoch)


class RunLog:
    """Reads the logs of runs. Thread-safe."""

    def __init__(self, live: Live, store: Store) -> None:
        self._live = live
        self._store = store

    def read(self, run_id: str, *, after: Place = START, limit: int = 1000) -> LogPage:
        """Return the events after a place, in order: 1 round trip to Redis, 2 if there are none.

        If the live state was lost since, and the run made anew, they are the first ones of its new story (``reset``).
        MongoDB is asked only about runs that have no live state (any more), or while Redis is away.

        Raises:
            NotFound: ``run_not_found``.
            ServerUnavailable: Redis is away and the ledger does not have the rest of the story.
        """
        page = self._read(run_id, after, limit)
        if page.epoch == after.epoch or after.seq == 0:
            return page
        return replace(self._read(run_id, Place(0, page.epoch), limit), reset=True)

    def _read(self, run_id: str, after: Place, limit: int) -> LogPage:
        """Return what has a higher ``seq``, of whatever epoch it is."""
        try:
            if events := self._live.events(run_id, after=after.seq, limit=limit):
                return _page(events, more=len(events) == limit)
            run, away = self._live.get(run_id), None
        except ServerUnavailable as error:
            run, away = None, error
        if run is None:
            return self._recorded(run_id, after, limit, away)
        # What was written between the two questions rings the bell.
        return LogPage((), over=run.ended and run.seq <= after.seq, epoch=run.epoch)

    def _recorded(self, run_id: str, after: Place, limit: int, away: ServerUnavailable | None) -> LogPage:
        if events := self._store.events(run_id, after=after.seq, limit=limit):
            return _page(events, more=not events[-1].terminal)
        run = self._store.get_run(run_id)
        if run is None:
            raise NotFound.of("run", run_id)
        if away is not None and not (run.ended and run.seq <= after.seq):
            # "Nothing new" would be a guess: whoever follows the run must ask again, not wait for a ring.
            raise away
        # A live state goes only when the ledger has all of it, or with the whole of Redis. In which epoch an open run
        # will come back is not known before it does.
        return LogPage((), over=run.ended, epoch=run.epoch if run.ended else after.epoch)


def _page(events: Sequence[Event], *, more: bool) -> LogPage:
    return LogPage(events, over=events[-1].terminal, more=more, epoch=events[-1].epoch)

"""Making live state anew for runs that are open on record and have none, or an old one.

Redis lost them (it was emptied, or came back from a copy seconds old), or their acceptance was cut off between the
ledger and Redis.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from app.models.event import Event
from app.models.run import Run, RunStatus
from app.ports import Dispatcher, Live, RunFilter, Store
from app.runs.rescue import send_nudge
from app.transitions import ended_by

logger = logging.getLogger(__name__)

GRACE_MS = 10_000
"""A run younger than this may be on its way from the ledger to Redis."""

SKEW_MS = 60_000
"""How far the clocks of those who accept runs may lie apart."""

BATCH = 200


class Recovery:
    """Compares the ledger with the live state. One thread uses an instance."""

    def __init__(self, *, store: Store, live: Live, dispatcher: Dispatcher) -> None:
        self._store = store
        self._live = live
        self._dispatcher = dispatcher
        self._complete_ms = 0
        """Every run accepted before this time has been compared."""

    def round(self, now_ms: int) -> int:
        """Compare what may differ, and return how many runs were made anew.

        That is everything once after the server was emptied, restarted or replaced; otherwise the runs that were
        accepted since the last time.
        """
        if not self._live.trusted():
            return self.everything()
        made = sum(map(self._renew, self._strayed(RunStatus.QUEUED, now_ms - GRACE_MS, self._complete_ms - SKEW_MS)))
        self._complete_ms = now_ms - GRACE_MS
        return made

    def everything(self) -> int:
        """Compare all open runs of both, in steps that may be cut off and are then done again."""
        self._forget_ended()
        made = 0
        for status in (RunStatus.QUEUED, RunStatus.RUNNING):
            made += sum(map(self._renew, self._strayed(status)))
        self._live.trust()
        if made:
            logger.warning("Redis had lost runs; %d were made anew from the ledger", made)
        return made

    def _forget_ended(self) -> None:
        """Forget live states, come back with an old copy, of runs whose end is on record."""
        open_ids = self._live.open_runs()
        for first in range(0, len(open_ids), BATCH):
            for run_id in self._store.ended_runs(open_ids[first : first + BATCH]):
                self._live.drop(run_id)

    def _strayed(self, status: RunStatus, until_ms: int | None = None, since_ms: int = 0) -> Iterator[Run]:
        """Yield runs that are open on record and whose live state is missing or older, accepted in that time."""
        after = None
        while True:
            page = self._store.list_runs(RunFilter(status=status), after=after, limit=BATCH)
            asked = {run.run_id: run for run in page.items if until_ms is None or run.created_ms <= until_ms}
            for run_id in self._live.behind({run_id: run.rev for run_id, run in asked.items()}):
                yield asked[run_id]
            after = page.next
            if after is None or (page.items and page.items[-1].created_ms < since_ms):
                return

    def _renew(self, run: Run) -> bool:
        if self._settle(run):
            return False
        again = make_anew(self._store, self._live, run)
        if again is None:
            return False
        if self._store.ended_runs([run.run_id]):
            # Its end reached the ledger while this was going on, brought there by another dispatcher.
            self._live.drop(run.run_id)
            return False
        if run.cancel_requested:
            self._live.cancel(run.run_id)
        else:
            send_nudge(self._dispatcher, again)
        return True

    def _settle(self, run: Run) -> bool:
        """Record the end of a run whose whole story is on record already: Redis was lost between the two."""
        events: list[Event] = []
        while more := self._store.events(run.run_id, after=len(events)):
            events += more
        if not events:
            return False
        if not events[-1].terminal:
            self._store.drop_events(run.run_id)
            return False
        self._store.mirror_run(ended_by(run, events[-1]))
        self._live.drop(run.run_id)
        return True


def make_anew(store: Store, live: Live, run: Run) -> Run | None:
    """Make the live state of a run that is open on record; return it, or ``None`` if that is not to be done any more.

    Its events count from 1 again, in the next epoch: those that Redis lost may have been seen and cannot be told again.
    The epoch is on record before anybody can see an event of it, so that it is used once however often Redis is lost.
    """
    recorded: Run | None = run
    while recorded is not None and not recorded.ended and live.behind({run.run_id: recorded.rev}):
        again = recorded.with_(
            status=RunStatus.QUEUED,
            attempt=recorded.attempt + 1,
            epoch=recorded.epoch + 1,
            rev=recorded.rev + 1,
            not_before_ms=0,
            waiting_for=None,
            worker=None,
        )
        if store.mirror_run(again):
            live.drop(run.run_id)
            made = live.create(again.with_(input={}) if run.input_in_ledger else again, reason="live_state_lost")
            return again if made else None
        # Somebody else was quicker, and may have got no further than this: look again.
        recorded = store.get_run(run.run_id)
    return None

"""What any dispatcher does for all runs, every few seconds, whichever of them comes first."""

from __future__ import annotations

import logging

from app.models.run import Run, RunStatus
from app.ports import Live, Store

logger = logging.getLogger(__name__)

BATCH = 200
EVENTS_AT_A_TIME = 500


class Housekeeping:
    """The jobs. Each may be cut off between any two steps and is simply done again."""

    def __init__(self, *, store: Store, live: Live, period_s: float) -> None:
        self._store = store
        self._live = live
        # A little less than the period, so that a round that starts early by jitter still finds the guard free.
        self._guard_ms = int(period_s * 800)
        self._prepared = False

    def round(self) -> None:
        """Do every job that no other dispatcher has done in this period."""
        if not self._prepared:
            # At the first round rather than at start, so that a process may start before MongoDB does.
            self._store.prepare()
            self._prepared = True
        if self._live.guard("mirror", period_ms=self._guard_ms):
            self.mirror()

    def mirror(self) -> int:
        """Bring the ledger up to the live state; return how many runs were brought up.

        First what became of the run, then its events; only when both are on record is the change forgotten, so that a
        crash in between costs a repetition and nothing else.
        """
        done = 0
        while runs := self._live.changed(BATCH):
            for run in runs:
                self._mirror(run)
            done += len(runs)
            if len(runs) < BATCH:
                break
        return done

    def _mirror(self, run: Run) -> None:
        recorded = self._store.mirror_run(run)
        if run.ended:
            self._copy_events(run)
        elif not recorded and self._was_refused(run):
            # Its caller was told that it was not accepted, yet Redis had stored it before it went silent.
            self._live.cancel(run.run_id)
        self._live.mirrored(run.run_id, run.rev)

    def _copy_events(self, run: Run) -> None:
        after = 0
        while events := self._live.events(run.run_id, after=after, limit=EVENTS_AT_A_TIME):
            self._store.append_events(run.run_id, events)
            after = events[-1].seq

    def _was_refused(self, run: Run) -> bool:
        record = self._store.get_run(run.run_id)
        return record is not None and record.status is RunStatus.FAILED

"""What any dispatcher does for all runs, every few seconds, whichever of them comes first."""

from __future__ import annotations

import logging
from collections.abc import Callable

from app.clock import Clock
from app.errors import ServerUnavailable
from app.models.event import Event, Place
from app.models.run import Run
from app.ports import Live, Store
from app.runs.recovery import Recovery
from app.runs.rescue import Rescue

logger = logging.getLogger(__name__)

BATCH = 200
EVENTS_AT_A_TIME = 500
RECOVERY_PERIODS = 5
"""Runs whose acceptance was cut off are looked for once in so many rounds."""


class Housekeeping:
    """The jobs. Each may be cut off between any two steps and is simply done again."""

    def __init__(
        self, *, store: Store, live: Live, rescue: Rescue, recovery: Recovery, clock: Clock, period_s: float,
        keep_s: float,
    ) -> None:  # fmt: skip
        self._store = store
        self._live = live
        self._rescue = rescue
        self._recovery = recovery
        self._clock = clock
        # A little less than the period, so that a round that starts early by jitter still finds the guard free.
        self._guard_ms = int(period_s * 800)
        self._keep_ms = int(keep_s * 1000)
        self._prepared = False
        self._away: set[str] = set()

    def round(self) -> None:
        """Do every job that no other dispatcher has done in this period.

        One that a server's absence stops keeps none of the others from being done, and is said once.
        """
        self._do("prepare", self._prepare)
        self._do("mirror", self.mirror)
        # Before leases are broken: what came back from an old copy is not to be run again.
        self._do("recovery", lambda: self._recovery.round(self._clock()), periods=RECOVERY_PERIODS)
        self._do("rescue", self._rescue.round)

    def _do(self, job: str, work: Callable[[], object], *, periods: int = 1) -> None:
        try:
            if job == "prepare" or self._live.guard(job, period_ms=self._guard_ms * periods):
                work()
        except ServerUnavailable as error:
            if job not in self._away:
                logger.warning("housekeeping cannot do its %s and tries again: %s", job, error)
            self._away.add(job)
        else:
            if job in self._away:
                logger.info("housekeeping does its %s again", job)
            self._away.discard(job)

    def _prepare(self) -> None:
        if not self._prepared:
            # At the first round rather than at start, so that a process may start before MongoDB does.
            self._store.prepare()
            self._prepared = True

    def mirror(self) -> int:
        """Bring the ledger up to the live state; return how many runs were brought up.

        Of a run that has ended first its events, then what became of it, then its live state may go: a crash in between
        costs a repetition and nothing else.
        """
        done = 0
        while runs := self._live.changed(BATCH):
            mirrored = sum(map(self._mirror_or_say, runs))
            done += mirrored
            if len(runs) < BATCH or not mirrored:
                break
        return done

    def _mirror_or_say(self, run: Run) -> bool:
        try:
            self._mirror(run)
        except ServerUnavailable:
            raise
        except Exception:
            # One run that cannot be written must not keep all others from the ledger.
            logger.exception("run %s could not be brought to the ledger", run.run_id)
            return False
        return True

    def _mirror(self, run: Run) -> None:
        if run.ended:
            self._keep(run)
            return
        if not self._store.mirror_run(run) and self._store.ended_runs([run.run_id]):
            # Its caller was told that it was not accepted, yet Redis had stored it before it went silent.
            self._live.cancel(run.run_id)
        self._live.mirrored(run.run_id, run.rev)

    def _keep(self, run: Run) -> None:
        """Bring a run's whole story to the ledger, then its end, and let its live state go."""
        events = self._story(run)
        if not events or events[-1].place != Place(run.seq, run.epoch):
            # Redis has lost it since: the run is open on record, and is made anew.
            return
        if self._is_its_life(run):
            # The story first: an end without one could not be told any more once Redis has lost it.
            self._store.append_events(run.run_id, events)
            self._store.mirror_run(run)
        self._store.drop_journal(run.run_id)
        self._live.archived(run.run_id, keep_ms=self._keep_ms)

    def _story(self, run: Run) -> list[Event]:
        events: list[Event] = []
        while more := self._live.events(run.run_id, after=len(events), limit=EVENTS_AT_A_TIME):
            events += more
        return events

    def _is_its_life(self, run: Run) -> bool:
        """Return whether the record is of this very life of the run, and not of a later one or of another end."""
        record = self._store.get_run(run.run_id)
        if record is None:
            return False
        return record.epoch <= run.epoch and (not record.ended or record.rev == run.rev)

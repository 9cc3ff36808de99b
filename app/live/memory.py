"""The live state in memory: the state machine itself behind one lock, for tests and for trying things out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from threading import RLock
from typing import Any, TypeVar

from app import transitions
from app.clock import Clock
from app.models.event import Event, NewEvent
from app.models.json_value import dumps, loads
from app.models.role import QueueStats
from app.models.run import RUN_SCHEMA, Run, RunError, RunStatus, WorkerRef
from app.ports import Ack, AckToCome, CancelResult, Claim, Outcome, Renewal
from app.transitions import Command, LiveState, expires

R = TypeVar("R")


class MemoryLive:
    """Implements :class:`app.ports.Live`. Safe to share between threads.

    Indexes are computed from the states when they are asked for. Payloads pass through JSON on the way in and out, so
    that what a caller does to them later changes nothing here.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = RLock()
        self._states: dict[str, LiveState] = {}
        self._events: dict[str, list[Event]] = {}
        self._changed: dict[str, int] = {}
        self._expiry: dict[str, int] = {}
        self._guards: dict[str, int] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._trusted = False

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call ``listener`` with a run's id whenever the run has new events."""
        self._listeners.append(listener)

    def ping(self) -> None:
        """Memory always answers."""

    def headroom(self) -> bool:
        return True

    # --- commands about one run ----------------------------------------------------------------------------------

    def create(self, run: Run, *, reason: str | None = None) -> bool:
        return self._apply(run.run_id, transitions.Create(_copy(run), reason))

    def claim(self, run_id: str, *, worker: WorkerRef, token: str, ttl_ms: int) -> Claim:
        claim = self._apply(run_id, transitions.Claim(worker, token, ttl_ms))
        return claim if claim.run is None else Claim(_copy(claim.run))

    def append(self, run_id: str, token: str, batch: int, events: Sequence[NewEvent]) -> Ack:
        return self._apply(run_id, transitions.Append(token, batch, _copies(events)))

    def renew(self, leases: Iterable[tuple[str, str]], *, ttl_ms: int) -> Renewal:
        acks = {run_id: self._apply(run_id, transitions.Renew(token, ttl_ms)) for run_id, token in leases}
        return Renewal(
            refused=frozenset(run_id for run_id, ack in acks.items() if not ack.ok),
            cancelled=frozenset(run_id for run_id, ack in acks.items() if ack.cancelled),
            forced=frozenset(run_id for run_id, ack in acks.items() if ack.force),
        )

    def finish(self, run_id: str, token: str, batch: int, events: Sequence[NewEvent], outcome: Outcome) -> Ack:
        outcome = Outcome(outcome.status, _json(outcome.output), outcome.error)
        return self._apply(run_id, transitions.Finish(token, batch, _copies(events), outcome))

    def send_finish(
        self, run_id: str, token: str, batch: int, events: Sequence[NewEvent], outcome: Outcome
    ) -> AckToCome:
        return _Known(self.finish(run_id, token, batch, events, outcome))

    def hand_back(
        self, run_id: str, token: str, batch: int, events: Sequence[NewEvent], *,
        reason: str, role: str | None = None, exclude: bool = False,
    ) -> Ack:  # fmt: skip
        return self._apply(run_id, transitions.HandBack(token, batch, _copies(events), reason, role, exclude))

    def break_lease(
        self, run_id: str, *, attempt: int, reason: str, role: str | None, pause_ms: int, max_losses: int,
        token: str | None = None,
    ) -> Run | None:  # fmt: skip
        command = transitions.BreakLease(attempt, reason, role, pause_ms, max_losses, token)
        run = self._apply(run_id, command)
        return None if run is None else _copy(run)

    def retry(
        self, run_id: str, token: str, batch: int, events: Sequence[NewEvent], *, code: str, pause_ms: int
    ) -> Ack:
        return self._apply(run_id, transitions.Retry(token, batch, _copies(events), code, pause_ms))

    def move(self, run_id: str, *, attempt: int, role: str, reason: str) -> Run | None:
        run = self._apply(run_id, transitions.Move(attempt, role, reason))
        return None if run is None else _copy(run)

    def fail_queued(self, run_id: str, *, attempt: int, error: RunError) -> Run | None:
        run = self._apply(run_id, transitions.FailQueued(attempt, error))
        return None if run is None else _copy(run)

    def drop(self, run_id: str) -> None:
        with self._lock:
            state = self._state(run_id)
            if state is not None and not state.run.ended and state.run.schema <= RUN_SCHEMA:
                self._forget(run_id)

    def cancel(self, run_id: str, *, force: bool = False) -> CancelResult:
        return self._apply(run_id, transitions.Cancel(force))

    def mirrored(self, run_id: str, rev: int) -> None:
        with self._lock:
            state = self._state(run_id)
            if state is None or state.run.rev <= rev:
                self._changed.pop(run_id, None)

    def archived(self, run_id: str, *, keep_ms: int) -> None:
        with self._lock:
            state = self._state(run_id)
            if state is not None and state.run.ended and state.run.schema <= RUN_SCHEMA:
                self._changed.pop(run_id, None)
                self._expiry[run_id] = self._clock() + keep_ms

    # --- questions -----------------------------------------------------------------------------------------------

    def get(self, run_id: str) -> Run | None:
        with self._lock:
            state = self._state(run_id)
            return None if state is None else _copy(state.run)

    def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        with self._lock:
            self._state(run_id)
            return [Event.from_wire(_json(event.to_wire())) for event in self._events.get(run_id, [])[after:][:limit]]

    def queues(self, roles: Collection[str]) -> Mapping[str, QueueStats]:
        with self._lock:
            return {role: self._queue(role) for role in roles}

    def changed(self, limit: int) -> list[Run]:
        with self._lock:
            runs = [self._states[run_id].run for run_id in _first(self._changed, limit)]
            return [_copy(run) for run in runs if run.schema <= RUN_SCHEMA]

    def expired_leases(self, limit: int) -> list[str]:
        with self._lock:
            return self._due({run_id: state.lease_ms for run_id, state in self._in(RunStatus.RUNNING)}, limit)

    def queued(self, role: str, limit: int, *, waited_ms: int = 0) -> list[str]:
        with self._lock:
            waiting = {run_id: state.queued_ms + waited_ms for run_id, state in self._in(RunStatus.QUEUED, role)}
            return self._due(waiting, limit)

    def waiting_roles(self) -> list[str]:
        with self._lock:
            return sorted({state.run.target_role for _, state in self._in(RunStatus.QUEUED)})

    def expired(self, limit: int) -> list[str]:
        with self._lock:
            times = {run_id: expires(state.run) for run_id, state in self._in(RunStatus.QUEUED)}
            return self._due({run_id: at for run_id, at in times.items() if at is not None}, limit)

    def behind(self, revs: Mapping[str, int]) -> list[str]:
        with self._lock:
            states = {run_id: self._state(run_id) for run_id in revs}
            return [run_id for run_id, state in states.items() if state is None or state.run.rev < revs[run_id]]

    def open_runs(self) -> list[str]:
        with self._lock:
            return [run_id for run_id, state in self._states.items() if not state.run.ended]

    def trusted(self) -> bool:
        return self._trusted

    def trust(self) -> None:
        self._trusted = True

    def lose(self, *run_ids: str) -> None:
        """Forget everything, or these runs, as a server does that was emptied or restarted from an old copy."""
        with self._lock:
            self._trusted = False
            for run_id in run_ids or list(self._states):
                self._forget(run_id)

    def guard(self, job: str, *, period_ms: int) -> bool:
        with self._lock:
            now = self._clock()
            if self._guards.get(job, 0) > now:
                return False
            self._guards[job] = now + period_ms
            return True

    def close(self) -> None:
        """Nothing is held."""

    # --- inside --------------------------------------------------------------------------------------------------

    def _apply(self, run_id: str, command: Command[R]) -> R:
        with self._lock:
            now, before = self._clock(), self._state(run_id)
            change = transitions.apply(before, command, now)
            if change.state is not None and change.state is not before:
                self._states[run_id] = change.state
                if before is None or before.run.rev != change.state.run.rev:
                    self._changed.setdefault(run_id, now)
            if change.events:
                self._events.setdefault(run_id, []).extend(change.events)
                for listener in self._listeners:
                    listener(run_id)
            return change.reply

    def _state(self, run_id: str) -> LiveState | None:
        if run_id in self._expiry and self._expiry[run_id] <= self._clock():
            self._forget(run_id)
        return self._states.get(run_id)

    def _forget(self, run_id: str) -> None:
        for kept in (self._states, self._events, self._expiry, self._changed):
            kept.pop(run_id, None)

    def _in(self, status: RunStatus, role: str | None = None) -> list[tuple[str, LiveState]]:
        return [
            (run_id, state)
            for run_id, state in self._states.items()
            if state.run.status is status and role in (None, state.run.target_role)
        ]

    def _queue(self, role: str) -> QueueStats:
        waiting, now = [state.queued_ms for _, state in self._in(RunStatus.QUEUED, role)], self._clock()
        oldest = min((since for since in waiting if since <= now), default=None)
        return QueueStats(len(waiting), len(self._in(RunStatus.RUNNING, role)), oldest)

    def _due(self, times: Mapping[str, int], limit: int) -> list[str]:
        now = self._clock()
        return _first({run_id: at for run_id, at in times.items() if at <= now}, limit)


class _Known:
    """:class:`app.ports.AckToCome` for what is answered at once."""

    def __init__(self, ack: Ack) -> None:
        self._ack = ack

    def known(self) -> bool:
        return True

    def get(self) -> Ack:
        return self._ack


def _first(times: Mapping[str, int], limit: int) -> list[str]:
    """Return ids by time; those of one millisecond by id, as a sorted set does."""
    return sorted(times, key=lambda run_id: (times[run_id], run_id))[:limit]


def _json(value: Any) -> Any:
    return loads(dumps(value))


def _copy(run: Run) -> Run:
    return Run.from_record(_json(run.to_record()))


def _copies(events: Sequence[NewEvent]) -> list[NewEvent]:
    return [NewEvent(event.type, event.node, _json(event.data)) for event in events]

"""The life of a run as one pure function: ``apply(state, command, now_ms) -> Change``.

``queued -> running -> completed | failed | cancelled``. Every rule about what may happen to a run stands here once, in
Python that reads no clock and keeps nothing. The memory adapter runs this function; the scripts of the Redis adapter
say the same in Lua, and a test drives both with the same commands and compares everything.

What holds for every run:

* its events count from 1 without gaps, in each epoch anew, and exactly one of them, the last, is terminal;
* an ended status never changes;
* only the holder of the lease *token* may write; ``attempt`` is for people and for breaking a lease;
* a command whose reply was lost may be sent again: a claim, a finish, a hand-back, a retry with the same token and a
  batch with the same number answer as the first time and change nothing;
* ``rev`` rises by one with each change that the ledger shows, not with appended events;
* a run of a newer schema is left alone.
"""
# Long because: a run's rules are read and changed as one piece.

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from app import ports
from app.models.event import (
    RUN_CANCELLED,
    RUN_COMPLETED,
    RUN_FAILED,
    RUN_QUEUED,
    RUN_REROUTED,
    RUN_RETRYING,
    RUN_STARTED,
    TERMINAL,
    Event,
    NewEvent,
)
from app.models.run import RUN_SCHEMA, Run, RunError, RunStatus, WorkerRef
from app.ports import Ack, CancelResult, ClaimRefusal, Outcome

R = TypeVar("R")

ReleasedBy = Literal["finish", "hand_back", "retry"]


@dataclass(frozen=True, slots=True)
class Released:
    """How the last holder gave up its lease, and what it was answered."""

    by: ReleasedBy
    token: str
    ack: Ack


@dataclass(frozen=True, slots=True)
class LiveState:
    """A run and what the live store keeps beside it while it is open."""

    run: Run
    queued_ms: int
    """Since when the run waits, or waited, for a worker; after a pause, the end of the pause."""
    token: str = ""
    """Who holds the run; empty: nobody."""
    lease_ms: int = 0
    """When the lease expires."""
    batch: int = 0
    """The number of the last batch of events under this token."""
    force: bool = False
    """Whether the cancel that was requested is to be forced."""
    released: Released | None = None


class Command(Generic[R]):
    """What can be asked of a run; ``R`` is the type of the answer."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Create(Command[bool]):
    run: Run
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Claim(Command[ports.Claim]):
    worker: WorkerRef
    token: str
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class Append(Command[Ack]):
    token: str
    batch: int
    events: Sequence[NewEvent]


@dataclass(frozen=True, slots=True)
class Renew(Command[Ack]):
    token: str
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class Finish(Command[Ack]):
    token: str
    batch: int
    events: Sequence[NewEvent]
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class HandBack(Command[Ack]):
    token: str
    batch: int
    events: Sequence[NewEvent]
    reason: str
    role: str | None = None
    exclude: bool = False


@dataclass(frozen=True, slots=True)
class Retry(Command[Ack]):
    token: str
    batch: int
    events: Sequence[NewEvent]
    code: str
    pause_ms: int


@dataclass(frozen=True, slots=True)
class BreakLease(Command[Run | None]):
    attempt: int
    reason: str
    role: str | None
    pause_ms: int
    max_losses: int
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Move(Command[Run | None]):
    attempt: int
    role: str
    reason: str


@dataclass(frozen=True, slots=True)
class FailQueued(Command[Run | None]):
    attempt: int
    error: RunError


@dataclass(frozen=True, slots=True)
class Cancel(Command[CancelResult]):
    force: bool = False


@dataclass(frozen=True, slots=True)
class Change(Generic[R]):
    """What a command did: the state after it, the events it added, and its answer.

    ``state`` is the very object that went in where nothing changed.
    """

    state: LiveState | None
    events: tuple[Event, ...]
    reply: R


def apply(state: LiveState | None, command: Command[R], now_ms: int) -> Change[R]:
    """Apply one command to the state of one run (``None``: there is no such run) at ``now_ms``.

    Raises:
        ValueError: a batch has a terminal event, or an outcome's status is not an ended one. These are faults of the
            calling program, not of a user's input.
    """
    change: Change[R] = _RULES[type(command)](state, command, now_ms)
    return change


# --- events: the one place that spells the data of run.* ---------------------------------------------------------


def queued_event(run: Run, reason: str | None) -> NewEvent:
    data = {"targetRole": run.target_role, "variant": run.variant}
    return NewEvent(RUN_QUEUED, data=data if reason is None else data | {"reason": reason})


def started_event(worker: WorkerRef) -> NewEvent:
    return NewEvent(RUN_STARTED, data={"worker": worker.to_wire()})


def rerouted_event(origin: str, target: str, reason: str) -> NewEvent:
    return NewEvent(RUN_REROUTED, data={"from": origin, "to": target, "reason": reason})


def retrying_event(code: str, pause_ms: int) -> NewEvent:
    return NewEvent(RUN_RETRYING, data={"code": code, "inMs": pause_ms})


def terminal_event(outcome: Outcome) -> NewEvent:
    """Return the last event of a run that ends with ``outcome``.

    Raises:
        ValueError: its status is not an ended one, or it failed without an error.
    """
    match outcome:
        case Outcome(RunStatus.COMPLETED):
            return NewEvent(RUN_COMPLETED, data={"output": outcome.output})
        case Outcome(RunStatus.FAILED, error=RunError() as error):
            return NewEvent(RUN_FAILED, data={"error": error.to_wire()})
        case Outcome(RunStatus.CANCELLED):
            return NewEvent(RUN_CANCELLED)
    raise ValueError(f"an outcome must be completed, failed with an error, or cancelled, not {outcome}")


def ended_by(run: Run, last: Event) -> Run:
    """Return the run as its terminal event left it; the event says all of it."""
    data = last.data or {}
    return run.with_(
        status=RunStatus(last.type.removeprefix("run.")),
        attempt=last.attempt,
        epoch=last.epoch,
        output=data.get("output"),
        error=RunError.from_wire(data["error"]) if "error" in data else None,
        ended_ms=last.at_ms,
        waiting_for=None,
        seq=last.seq,
        rev=run.rev + 1,
    )


def worker_lost(attempt: int, max_losses: int, reason: str) -> RunError:
    """Return why a run fails whose workers were lost ``max_losses`` times."""
    message = f"lost its worker {max_losses} times, the most that RUN_MAX_ATTEMPTS allows; the last time: {reason}"
    return RunError("worker_lost", message, attempt)


def new_run(run: Run, now_ms: int) -> Run:
    """Return what the live state of ``run`` begins with, before its first event."""
    return run.with_(
        status=RunStatus.QUEUED,
        # One that is made anew was accepted when it was.
        created_ms=run.created_ms if run.epoch else now_ms,
        ended_ms=None,
        worker=None,
        output=None,
        error=None,
        seq=0,
        rev=run.rev + 1,
    )


def check_batch(events: Iterable[NewEvent]) -> None:
    """Refuse a batch that has a terminal event: only the end of a run writes one.

    Raises:
        ValueError: naming the event's type.
    """
    for event in events:
        if event.type in TERMINAL:
            raise ValueError(f"{event.type} is written by the end of a run and cannot be appended")


# --- rules -------------------------------------------------------------------------------------------------------


def _create(state: LiveState | None, command: Create, now_ms: int) -> Change[bool]:
    if state is not None:
        return Change(state, (), False)
    run = new_run(command.run, now_ms)
    run, events = _log(run, now_ms, [queued_event(run, command.reason)])
    return Change(LiveState(run, queued_ms=max(now_ms, run.not_before_ms)), events, True)


def _claim(state: LiveState | None, command: Claim, now_ms: int) -> Change[ports.Claim]:
    if state is not None and state.run.status is RunStatus.RUNNING and _holds(state, command.token):
        return Change(state, (), ports.Claim(state.run))
    refusal = _refusal(state, command, now_ms)
    if state is None or refusal is not None:
        return Change(state, (), ports.Claim(None, refusal))
    run, events = _log(state.run, now_ms, [started_event(command.worker)])
    run = run.with_(
        status=RunStatus.RUNNING,
        worker=command.worker,
        started_ms=now_ms if run.started_ms is None else run.started_ms,
        waiting_for=None,
        rev=run.rev + 1,
    )
    state = replace(state, run=run, token=command.token, lease_ms=now_ms + command.ttl_ms, batch=0)
    return Change(state, events, ports.Claim(run))


def _refusal(state: LiveState | None, command: Claim, now_ms: int) -> ClaimRefusal | None:
    if state is None:
        return "missing"
    run = state.run
    if run.schema > RUN_SCHEMA:
        return "newer_schema"
    if run.ended:
        return "ended"
    if run.status is RunStatus.RUNNING:
        return "taken"
    if run.target_role != command.worker.role:
        return "other_role"
    if command.worker.instance_id in run.excluded:
        return "excluded"
    if run.not_before_ms > now_ms:
        return "too_early"
    expires_ms = expires(run)
    return "expired" if expires_ms is not None and expires_ms <= now_ms else None


def expires(run: Run) -> int | None:
    """Return when a queued run ends because nobody has ever started it, or ``None``."""
    return run.expires_ms if run.started_ms is None else None


def _append(state: LiveState | None, command: Append, now_ms: int) -> Change[Ack]:
    check_batch(command.events)
    if state is None or not _holds(state, command.token):
        return Change(state, (), Ack(False))
    state, events = _write(state, command, now_ms)
    return Change(state, events, _ack(state))


def _renew(state: LiveState | None, command: Renew, now_ms: int) -> Change[Ack]:
    if state is None or not _holds(state, command.token):
        return Change(state, (), Ack(False))
    state = replace(state, lease_ms=now_ms + command.ttl_ms)
    return Change(state, (), _ack(state))


def _finish(state: LiveState | None, command: Finish, now_ms: int) -> Change[Ack]:
    check_batch(command.events)
    terminal_event(command.outcome)
    if state is None or not _holds(state, command.token):
        return Change(state, (), _answer_again(state, "finish", command.token))
    state, written = _write(state, command, now_ms)
    # What the attempt reports is what happened: one that completed although a cancel was requested has completed.
    state, last = _end(state, command.outcome, now_ms)
    ack = _ack(state)
    return Change(replace(state, released=Released("finish", command.token, ack)), written + last, ack)


def _hand_back(state: LiveState | None, command: HandBack, now_ms: int) -> Change[Ack]:
    check_batch(command.events)
    if state is None or not _holds(state, command.token):
        return Change(state, (), _answer_again(state, "hand_back", command.token))
    state, written = _write(state, command, now_ms)
    run = state.run
    if command.exclude and run.worker is not None and run.worker.instance_id not in run.excluded:
        state = replace(state, run=run.with_(excluded=(*run.excluded, run.worker.instance_id)))
    if run.cancel_requested:
        state, last = _end(state, Outcome(RunStatus.CANCELLED), now_ms)
    else:
        state, last = _requeue(state, command.role, command.reason, now_ms)
    ack = _ack(state)
    return Change(replace(state, released=Released("hand_back", command.token, ack)), written + last, ack)


def _retry(state: LiveState | None, command: Retry, now_ms: int) -> Change[Ack]:
    check_batch(command.events)
    if state is None or not _holds(state, command.token):
        return Change(state, (), _answer_again(state, "retry", command.token))
    state, written = _write(state, command, now_ms)
    if state.run.cancel_requested:
        state, last = _end(state, Outcome(RunStatus.CANCELLED), now_ms)
    else:
        state = replace(state, run=state.run.with_(retries=state.run.retries + 1))
        news = retrying_event(command.code, command.pause_ms)
        state, last = _queue_again(state, state.run.target_role, news, now_ms, command.pause_ms)
    ack = _ack(state)
    return Change(replace(state, released=Released("retry", command.token, ack)), written + last, ack)


def _break_lease(state: LiveState | None, command: BreakLease, now_ms: int) -> Change[Run | None]:
    if state is None or not _breakable(state, command, now_ms):
        return Change(state, (), None)
    run = state.run.with_(losses=state.run.losses + 1)
    state = replace(state, run=run)
    if run.cancel_requested:
        state, events = _end(state, Outcome(RunStatus.CANCELLED), now_ms)
    elif run.losses >= command.max_losses:
        error = worker_lost(run.attempt, command.max_losses, command.reason)
        state, events = _end(state, Outcome(RunStatus.FAILED, error=error), now_ms)
    else:
        state, events = _requeue(state, command.role, command.reason, now_ms, pause_ms=command.pause_ms)
    return Change(state, events, state.run)


def _breakable(state: LiveState, command: BreakLease, now_ms: int) -> bool:
    run = state.run
    if run.schema > RUN_SCHEMA or run.status is not RunStatus.RUNNING or run.attempt != command.attempt:
        return False
    return _holds(state, command.token) if command.token else state.lease_ms <= now_ms


def _move(state: LiveState | None, command: Move, now_ms: int) -> Change[Run | None]:
    if state is None or not _waits(state, command.attempt) or state.run.target_role == command.role:
        return Change(state, (), None)
    # Nobody has tried, so it stays the same attempt, and it has waited since when it has waited.
    run, events = _log(state.run, now_ms, [rerouted_event(state.run.target_role, command.role, command.reason)])
    run = run.with_(target_role=command.role, rev=run.rev + 1)
    return Change(replace(state, run=run), events, run)


def _fail_queued(state: LiveState | None, command: FailQueued, now_ms: int) -> Change[Run | None]:
    if state is None or not _waits(state, command.attempt):
        return Change(state, (), None)
    state, events = _end(state, Outcome(RunStatus.FAILED, error=command.error), now_ms)
    return Change(state, events, state.run)


def _waits(state: LiveState, attempt: int) -> bool:
    run = state.run
    return run.schema <= RUN_SCHEMA and run.status is RunStatus.QUEUED and run.attempt == attempt


def _cancel(state: LiveState | None, command: Cancel, now_ms: int) -> Change[CancelResult]:
    if state is None:
        return Change(state, (), "missing")
    run = state.run
    if run.schema > RUN_SCHEMA:
        return Change(state, (), "newer_schema")
    if run.ended:
        return Change(state, (), "ended")
    requested = replace(state, run=run.with_(cancel_requested=True), force=state.force or command.force)
    if run.status is RunStatus.QUEUED:
        ended, events = _end(requested, Outcome(RunStatus.CANCELLED), now_ms)
        return Change(ended, events, "cancelled")
    if not run.cancel_requested:
        requested = replace(requested, run=requested.run.with_(rev=run.rev + 1))
    return Change(requested if requested != state else state, (), "requested")


# --- steps that rules share --------------------------------------------------------------------------------------


def _holds(state: LiveState, token: str) -> bool:
    return token != "" and state.token == token


def _ack(state: LiveState) -> Ack:
    return Ack(True, state.run.seq, state.run.cancel_requested, state.force)


def _answer_again(state: LiveState | None, by: ReleasedBy, token: str) -> Ack:
    """Answer a caller that holds no lease: as the first time if this is the call that gave it up."""
    if state is not None and (done := state.released) is not None and (done.by, done.token) == (by, token):
        return done.ack
    return Ack(False)


def _log(run: Run, now_ms: int, news: Iterable[NewEvent]) -> tuple[Run, tuple[Event, ...]]:
    """Number events; return the run with its new ``seq``."""
    events = tuple(
        Event(run.run_id, seq, run.attempt, new.type, now_ms, new.node, new.data, run.epoch)
        for seq, new in enumerate(news, run.seq + 1)
    )
    return run.with_(seq=run.seq + len(events)), events


def _write(
    state: LiveState, command: Append | Finish | HandBack | Retry, now_ms: int
) -> tuple[LiveState, tuple[Event, ...]]:
    """Write a batch of events unless it is empty or its number was seen before."""
    if not command.events or command.batch <= state.batch:
        return state, ()
    run, events = _log(state.run, now_ms, command.events)
    return replace(state, run=run, batch=command.batch), events


def _end(state: LiveState, outcome: Outcome, now_ms: int) -> tuple[LiveState, tuple[Event, ...]]:
    run, events = _log(state.run, now_ms, [terminal_event(outcome)])
    completed, failed = outcome.status is RunStatus.COMPLETED, outcome.status is RunStatus.FAILED
    run = run.with_(
        status=outcome.status,
        output=outcome.output if completed else None,
        error=outcome.error if failed else None,
        ended_ms=now_ms,
        waiting_for=None,
        rev=run.rev + 1,
    )
    return replace(state, run=run, token=""), events


def _requeue(
    state: LiveState, role: str | None, reason: str, now_ms: int, *, pause_ms: int = 0
) -> tuple[LiveState, tuple[Event, ...]]:
    """Give a running run to the queue of ``role`` (default: the same)."""
    origin = state.run.target_role
    target = role or origin
    return _queue_again(state, target, rerouted_event(origin, target, reason), now_ms, pause_ms)


def _queue_again(
    state: LiveState, role: str, news: NewEvent, now_ms: int, pause_ms: int
) -> tuple[LiveState, tuple[Event, ...]]:
    """Put a running run back into a queue as its next attempt, to which the event belongs."""
    run, events = _log(state.run.with_(attempt=state.run.attempt + 1), now_ms, [news])
    run = run.with_(
        status=RunStatus.QUEUED,
        target_role=role,
        worker=None,
        not_before_ms=now_ms + pause_ms if pause_ms else 0,
        rev=run.rev + 1,
    )
    return replace(state, run=run, token="", queued_ms=now_ms + pause_ms), events


_RULES: dict[type[Command[Any]], Callable[[LiveState | None, Any, int], Change[Any]]] = {
    Create: _create,
    Claim: _claim,
    Append: _append,
    Renew: _renew,
    Finish: _finish,
    HandBack: _hand_back,
    Retry: _retry,
    BreakLease: _break_lease,
    Move: _move,
    FailQueued: _fail_queued,
    Cancel: _cancel,
}

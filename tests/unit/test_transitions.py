"""The state machine of a run: its laws under random commands, then its rules one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app import ports
from app.models.event import Event, NewEvent, Place
from app.models.run import RUN_SCHEMA, Run, RunError, RunStatus, WorkerRef
from app.ports import Ack, Outcome
from app.transitions import (
    Append,
    BreakLease,
    Cancel,
    Change,
    Claim,
    Command,
    Create,
    FailQueued,
    Finish,
    HandBack,
    LiveState,
    Move,
    Renew,
    Retry,
    apply,
)

WORKER = WorkerRef("i1", "worker@host", "worker")
OTHER = WorkerRef("i2", "worker-2@host", "worker")
GPU = WorkerRef("i3", "gpu-worker@host", "gpu-worker")
DONE = Outcome(RunStatus.COMPLETED, output={"answer": 42})
FAILED = Outcome(RunStatus.FAILED, error=RunError("PERMANENT", "no such page", 1, node="fetch"))
STOPPED = Outcome(RunStatus.CANCELLED)
LOG = NewEvent("log", data={"message": "hello"})
TTL = 30_000


def new_run(**changes: Any) -> Run:
    return Run("r1", "shop", "canary", "checkout", "v1", "worker", created_ms=5).with_(**changes)


class Story:
    """One run through several commands, a second apart, with all its events."""

    def __init__(self, *commands: Command[Any], **changes: Any) -> None:
        self.now = 1_000_000
        self.state: LiveState | None = None
        self.events: list[Event] = []
        for command in (Create(new_run(**changes)), *commands):
            self.does(command)

    def does(self, command: Command[Any]) -> Any:
        self.now += 1000
        change = apply(self.state, command, self.now)
        self.state = change.state
        self.events += change.events
        return change.reply

    def refuses(self, command: Command[Any]) -> Any:
        """Do a command that must change nothing."""
        before, count = self.state, len(self.events)
        reply = self.does(command)
        assert self.state is before
        assert len(self.events) == count
        return reply

    @property
    def run(self) -> Run:
        assert self.state is not None
        return self.state.run

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]


def claim(token: str = "t1", worker: WorkerRef = WORKER) -> Claim:
    return Claim(worker, token, TTL)


def append(token: str = "t1", batch: int = 1, *events: NewEvent) -> Append:
    return Append(token, batch, events or (LOG,))


def finish(outcome: Outcome = DONE, token: str = "t1", batch: int = 9, *events: NewEvent) -> Finish:
    return Finish(token, batch, events, outcome)


def hand_back(token: str = "t1", **options: Any) -> HandBack:
    return HandBack(token, 9, (), "draining", **options)


def lose(attempt: int = 1, token: str | None = "t1", **options: Any) -> BreakLease:
    given = {"reason": "lease expired", "role": None, "pause_ms": 0, "max_losses": 3} | options
    return BreakLease(attempt, token=token, **given)


# --- laws --------------------------------------------------------------------------------------------------------

tokens = st.sampled_from(["t1", "t2", ""])
batches = st.lists(st.just(LOG), max_size=2)
numbers = st.integers(1, 3)
roles = st.sampled_from([None, "worker", "gpu-worker"])
commands: st.SearchStrategy[Command[Any]] = st.one_of(
    st.builds(Claim, st.sampled_from([WORKER, OTHER, GPU]), tokens, st.sampled_from([0, TTL])),
    st.builds(Append, tokens, numbers, batches),
    st.builds(Renew, tokens, st.just(TTL)),
    st.builds(Finish, tokens, numbers, batches, st.sampled_from([DONE, FAILED, STOPPED])),
    st.builds(HandBack, tokens, numbers, batches, st.just("draining"), roles, st.booleans()),
    st.builds(BreakLease, numbers, st.just("gone"), roles, st.sampled_from([0, 5000]), numbers, st.none() | tokens),
    st.builds(Retry, tokens, numbers, batches, st.just("timed_out"), st.sampled_from([0, 5000])),
    st.builds(Move, numbers, st.sampled_from(["worker", "gpu-worker"]), st.just("saturated")),
    st.builds(FailQueued, numbers, st.just(RunError("queue_timeout", "", 1))),
    st.builds(Cancel, st.booleans()),
    st.builds(Create, st.just(new_run())),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(commands, max_size=25))
def test_whatever_happens_a_run_has_one_gapless_story_with_one_end(happenings: list[Command[Any]]) -> None:
    story = Story()
    for command in happenings:
        before = story.state
        story.does(command)
        after = story.state
        assert before is not None
        assert after is not None
        if before.run.ended:
            assert after == before
        if after.run.with_(seq=0, rev=0) == before.run.with_(seq=0, rev=0):
            assert after.run.rev == before.run.rev
        else:
            assert after.run.rev == before.run.rev + 1
        assert after.run.attempt - before.run.attempt in (0, 1)
        assert (after.token != "") <= (after.run.status is RunStatus.RUNNING)
        assert (after.run.worker is None) or after.run.status is not RunStatus.QUEUED
    assert [event.seq for event in story.events] == list(range(1, story.run.seq + 1))
    assert [event.terminal for event in story.events] == [False] * (story.run.seq - 1) + [story.run.ended]
    assert [event.attempt for event in story.events] == sorted(event.attempt for event in story.events)


@settings(deadline=None, max_examples=150)
@given(st.lists(commands, max_size=15), commands)
def test_a_command_sent_again_by_the_holder_answers_as_the_first_time(
    happenings: list[Command[Any]], command: Command[Any]
) -> None:
    story = Story(*happenings)
    first = story.does(command)
    done = first.ok if isinstance(first, Ack) else isinstance(first, ports.Claim) and first.run is not None
    # An empty token holds nothing, and a renewal is meant to be repeated.
    if done and not isinstance(command, Renew) and command.token != "":  # type: ignore[attr-defined]
        assert story.refuses(command) == first


# --- create ------------------------------------------------------------------------------------------------------


def test_a_new_run_is_queued_with_the_stores_time_and_its_first_event() -> None:
    story = Story(created_ms=5, seq=7, rev=3, output="stale", worker=WORKER)
    assert story.run == new_run(created_ms=story.now, seq=1, rev=4)
    assert story.events == [
        Event("r1", 1, 1, "run.queued", story.now, data={"targetRole": "worker", "variant": "canary"})
    ]


def test_a_reason_is_told_in_run_queued() -> None:
    change = apply(None, Create(new_run(attempt=2), "live_state_lost"), 1)
    assert change.events[0].data == {"targetRole": "worker", "variant": "canary", "reason": "live_state_lost"}
    assert change.events[0].attempt == 2


def test_a_run_is_created_once() -> None:
    assert Story().refuses(Create(new_run())) is False


# --- claim -------------------------------------------------------------------------------------------------------


def test_a_claim_starts_the_run_and_names_the_worker() -> None:
    story = Story(waiting_for="no_workers")
    answer = story.does(claim())
    assert answer == ports.Claim(story.run)
    assert (story.run.status, story.run.worker, story.run.started_ms) == (RunStatus.RUNNING, WORKER, story.now)
    assert story.run.waiting_for is None
    assert story.events[-1].data == {"worker": {"instance_id": "i1", "node": "worker@host", "role": "worker"}}
    assert story.state is not None
    assert story.state.lease_ms == story.now + TTL


def test_a_repeated_claim_does_not_prolong_the_lease() -> None:
    story = Story()
    first = story.does(claim())
    assert story.refuses(claim()) == first


def test_a_repeated_claim_sees_that_a_cancel_was_requested() -> None:
    assert Story(claim(), Cancel()).refuses(claim()).run.cancel_requested


@pytest.mark.parametrize(
    ("story", "command", "refusal"),
    [
        (Story(claim()), claim("t2", OTHER), "taken"),
        (Story(claim(), finish()), claim(), "ended"),
        (Story(), claim(worker=GPU), "other_role"),
        (Story(not_before_ms=10**12), claim(), "too_early"),
        (Story(excluded=("i1",)), claim(), "excluded"),
        (Story(expires_ms=1_002_000), claim(), "expired"),
        (Story(schema=RUN_SCHEMA + 1), claim(), "newer_schema"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_claim_that_cannot_be_is_refused_with_the_reason(story: Story, command: Claim, refusal: str) -> None:
    assert story.refuses(command) == ports.Claim(None, refusal)  # type: ignore[arg-type]


def test_a_claim_of_no_run_is_refused() -> None:
    assert apply(None, claim(), 1) == Change(None, (), ports.Claim(None, "missing"))


def test_started_ms_is_when_the_first_attempt_started() -> None:
    story = Story(claim())
    started = story.run.started_ms
    story.does(hand_back())
    story.does(claim("t2"))
    assert (story.run.attempt, story.run.started_ms) == (2, started)


# --- append and renew --------------------------------------------------------------------------------------------


def test_appended_events_are_numbered_and_leave_the_rev_alone() -> None:
    story = Story(claim())
    rev = story.run.rev
    assert story.does(append("t1", 1, LOG, NewEvent("node.started", "a", {"input": {}}))) == Ack(True, 4)
    assert [(event.seq, event.node) for event in story.events[2:]] == [(3, None), (4, "a")]
    assert story.run.rev == rev


def test_a_batch_number_seen_before_writes_nothing() -> None:
    story = Story(claim(), append(batch=2))
    assert story.refuses(append(batch=2)) == Ack(True, 3)
    assert story.refuses(append(batch=1)) == Ack(True, 3)


def test_batches_count_from_one_again_under_a_new_token() -> None:
    story = Story(claim(), append(batch=5), hand_back(), claim("t2"))
    assert story.does(append("t2", 1)).seq == story.run.seq == 6


def test_an_append_without_events_asks_for_the_lease_whatever_its_number() -> None:
    story = Story(claim(), append(batch=1))
    assert story.refuses(Append("t1", 0, ())) == Ack(True, 3)
    assert story.does(append(batch=2)) == Ack(True, 4)


@pytest.mark.parametrize("command", [append("t2"), Renew("t2", TTL), finish(token="t2"), hand_back("t2")])
def test_another_token_is_fenced(command: Command[Ack]) -> None:
    assert Story(claim()).refuses(command) == Ack(False)
    assert apply(None, command, 1) == Change(None, (), Ack(False))


@pytest.mark.parametrize("command", [append(""), Renew("", TTL), finish(token=""), hand_back("")])
def test_an_empty_token_holds_nothing(command: Command[Ack]) -> None:
    assert Story().refuses(command) == Ack(False)
    assert Story(claim(), hand_back()).refuses(command) == Ack(False)


def test_a_renewal_moves_the_expiry_and_tells_of_a_cancel() -> None:
    story = Story(claim())
    assert story.does(Renew("t1", TTL)) == Ack(True, 2)
    assert story.state is not None
    assert story.state.lease_ms == story.now + TTL
    story.does(Cancel(force=True))
    assert story.does(Renew("t1", TTL)) == Ack(True, 2, cancelled=True, force=True)


def test_an_expired_lease_holds_until_somebody_breaks_it() -> None:
    story = Story(Claim(WORKER, "t1", 0))
    assert story.does(append()).ok
    assert story.does(Renew("t1", TTL)).ok
    assert story.refuses(lose(token=None)) is None


def test_a_terminal_event_cannot_be_appended() -> None:
    for command in (append("t1", 1, NewEvent("run.completed")), finish(DONE, "t1", 1, NewEvent("run.failed"))):
        with pytest.raises(ValueError, match="is written by the end of a run"):
            apply(Story(claim()).state, command, 1)


# --- finish ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "last"),
    [
        (DONE, ("run.completed", {"output": {"answer": 42}})),
        (FAILED, ("run.failed", {"error": FAILED.error and FAILED.error.to_wire()})),
        (STOPPED, ("run.cancelled", None)),
    ],
)
def test_an_outcome_ends_the_run(outcome: Outcome, last: tuple[str, Any]) -> None:
    story = Story(claim())
    assert story.does(finish(outcome, "t1", 1, LOG)) == Ack(True, 4)
    assert story.types[2:] == ["log", last[0]]
    assert story.events[-1].data == last[1]
    assert (story.run.status, story.run.output, story.run.error) == (outcome.status, outcome.output, outcome.error)
    assert (story.run.ended_ms, story.run.worker) == (story.now, WORKER)


def test_a_finish_with_a_batch_that_was_written_adds_the_end_alone() -> None:
    story = Story(claim(), append(batch=1))
    assert story.does(finish(DONE, "t1", 1, LOG)) == Ack(True, 4)
    assert story.types == ["run.queued", "run.started", "log", "run.completed"]


def test_a_repeated_finish_answers_as_the_first_time() -> None:
    story = Story(claim(), Cancel(force=True))
    first = story.does(finish(STOPPED))
    assert first == Ack(True, 3, cancelled=True, force=True)
    assert story.refuses(finish(DONE)) == first


def test_a_run_that_completed_although_a_cancel_was_requested_has_completed() -> None:
    story = Story(claim(), Cancel())
    assert story.does(finish(DONE)).cancelled
    assert (story.run.status, story.run.cancel_requested) == (RunStatus.COMPLETED, True)


@pytest.mark.parametrize("outcome", [Outcome(RunStatus.RUNNING), Outcome(RunStatus.FAILED)])
def test_an_outcome_must_be_an_end(outcome: Outcome) -> None:
    with pytest.raises(ValueError, match="an outcome must be"):
        apply(Story(claim()).state, finish(outcome), 1)


# --- hand back ---------------------------------------------------------------------------------------------------


def test_a_run_handed_back_is_the_next_attempt_without_a_loss() -> None:
    story = Story(claim())
    story.does(HandBack("t1", 1, [LOG], "draining", role="gpu-worker"))
    assert story.types[2:] == ["log", "run.rerouted"]
    assert story.events[-1].data == {"from": "worker", "to": "gpu-worker", "reason": "draining"}
    assert story.events[-1].attempt == 2
    run = story.run
    assert (run.status, run.attempt, run.losses, run.worker) == (RunStatus.QUEUED, 2, 0, None)
    assert (run.target_role, run.not_before_ms, run.excluded) == ("gpu-worker", 0, ())
    assert story.refuses(append()) == Ack(False)


def test_an_instance_that_excluded_itself_is_not_given_the_run_again() -> None:
    story = Story(claim(), hand_back(exclude=True))
    assert story.run.excluded == ("i1",)
    assert story.refuses(claim("t2")).refusal == "excluded"
    assert story.does(claim("t2", OTHER)).run is not None


def test_a_repeated_hand_back_answers_as_the_first_time_even_when_another_has_the_run() -> None:
    story = Story(claim())
    first = story.does(hand_back())
    story.does(claim("t2", OTHER))
    story.does(append("t2"))
    assert story.refuses(hand_back()) == first == Ack(True, 3)


def test_a_finish_is_not_taken_for_the_hand_back_before_it() -> None:
    assert Story(claim(), hand_back()).refuses(finish()) == Ack(False)


def test_a_run_handed_back_with_a_cancel_requested_ends_cancelled() -> None:
    story = Story(claim(), Cancel())
    assert story.does(hand_back()) == Ack(True, 3, cancelled=True)
    assert (story.run.status, story.run.attempt, story.types[-1]) == (RunStatus.CANCELLED, 1, "run.cancelled")


# --- retry -------------------------------------------------------------------------------------------------------


def test_a_run_that_is_tried_again_waits_for_its_pause_and_counts_the_retry() -> None:
    story = Story(claim())
    first = story.does(Retry("t1", 1, [LOG], "timed_out", 5000))
    assert story.types[2:] == ["log", "run.retrying"]
    assert story.events[-1].data == {"code": "timed_out", "inMs": 5000}
    run = story.run
    assert (run.status, run.attempt, run.retries, run.losses) == (RunStatus.QUEUED, 2, 1, 0)
    assert (run.target_role, run.not_before_ms) == ("worker", story.now + 5000)
    assert story.refuses(Retry("t1", 1, [LOG], "timed_out", 5000)) == first == Ack(True, 4)
    assert story.refuses(claim("t2")).refusal == "too_early"


def test_a_run_tried_again_with_a_cancel_requested_ends_cancelled() -> None:
    story = Story(claim(), Cancel())
    story.does(Retry("t1", 1, (), "timed_out", 0))
    assert (story.run.status, story.run.retries) == (RunStatus.CANCELLED, 0)


# --- while it waits ----------------------------------------------------------------------------------------------


def test_a_moved_run_is_the_same_attempt_and_has_waited_since_when_it_has_waited() -> None:
    story = Story()
    assert story.state is not None
    since = story.state.queued_ms
    assert story.does(Move(1, "gpu-worker", "no_workers")) == story.run
    assert story.events[-1].data == {"from": "worker", "to": "gpu-worker", "reason": "no_workers"}
    assert (story.run.target_role, story.run.attempt, story.run.losses) == ("gpu-worker", 1, 0)
    assert story.state.queued_ms == since
    assert story.does(claim(worker=GPU)).run == story.run


def test_a_run_fails_in_its_queue() -> None:
    error = RunError("queue_timeout", "nobody came", 1)
    story = Story()
    assert story.does(FailQueued(1, error)) == story.run
    assert (story.run.status, story.run.error, story.types[-1]) == (RunStatus.FAILED, error, "run.failed")


@pytest.mark.parametrize("command", [Move(1, "gpu-worker", "x"), FailQueued(1, RunError("x", "", 1))])
@pytest.mark.parametrize(
    "story", [Story(claim()), Story(claim(), finish()), Story(attempt=2), Story(schema=RUN_SCHEMA + 1)]
)
def test_only_a_run_of_that_attempt_that_waits_is_moved_or_failed(story: Story, command: Command[Any]) -> None:
    assert story.refuses(command) is None
    assert apply(None, command, 1).state is None


def test_a_run_is_not_moved_to_where_it_is() -> None:
    assert Story().refuses(Move(1, "worker", "saturated")) is None


def test_a_run_that_has_ever_started_does_not_expire() -> None:
    story = Story(claim(), hand_back(), expires_ms=1_003_500)
    story.now += 10_000
    assert story.does(claim("t2")).run is not None


def test_a_run_made_anew_was_accepted_when_it_was_and_its_events_bear_its_epoch() -> None:
    story = Story(claim(), created_ms=5, epoch=1)
    assert story.run.created_ms == 5
    assert [event.place for event in story.events] == [Place(1, 1), Place(2, 1)]


# --- break -------------------------------------------------------------------------------------------------------


def test_a_run_whose_worker_is_lost_waits_and_is_queued_again() -> None:
    story = Story(claim())
    run = story.does(lose(pause_ms=5000, role="gpu-worker"))
    assert run == story.run
    assert (run.status, run.attempt, run.losses, run.worker) == (RunStatus.QUEUED, 2, 1, None)
    assert (run.target_role, run.not_before_ms) == ("gpu-worker", story.now + 5000)
    assert story.events[-1].data == {"from": "worker", "to": "gpu-worker", "reason": "lease expired"}
    assert story.refuses(claim("t2", GPU)).refusal == "too_early"
    story.now += 4000
    assert story.does(claim("t2", GPU)).run is not None


def test_a_run_that_lost_its_worker_too_often_fails() -> None:
    story = Story(claim(), lose(1), claim("t2"), lose(2, "t2"), claim("t3"))
    run = story.does(lose(3, "t3"))
    assert (run.status, run.attempt, run.losses) == (RunStatus.FAILED, 3, 3)
    assert (run.error.code, run.error.attempt, story.types[-1]) == ("worker_lost", 3, "run.failed")
    assert "RUN_MAX_ATTEMPTS" in run.error.message


def test_a_lost_run_with_a_cancel_requested_ends_cancelled() -> None:
    run = Story(claim(), Cancel()).does(lose())
    assert (run.status, run.losses) == (RunStatus.CANCELLED, 1)


@pytest.mark.parametrize(
    ("story", "command"),
    [
        (Story(claim()), lose(token=None)),
        (Story(claim()), lose(token="t2")),
        (Story(claim()), lose(attempt=2)),
        (Story(), lose(token=None)),
        (Story(claim(), finish()), lose()),
    ],
    ids=["lease in force", "another token", "another attempt", "queued", "ended"],
)
def test_a_lease_is_not_broken(story: Story, command: BreakLease) -> None:
    assert story.refuses(command) is None


def test_a_running_run_of_a_newer_schema_is_left_alone() -> None:
    state = Story(Claim(WORKER, "t1", 0)).state
    assert state is not None
    newer = replace(state, run=state.run.with_(schema=RUN_SCHEMA + 1))
    assert apply(newer, lose(token=None), 10**13) == Change(newer, (), None)
    assert apply(newer, Cancel(), 10**13) == Change(newer, (), "newer_schema")


# --- cancel ------------------------------------------------------------------------------------------------------


def test_a_queued_run_is_cancelled_at_once() -> None:
    story = Story()
    assert story.does(Cancel()) == "cancelled"
    assert (story.run.status, story.run.ended_ms, story.types[-1]) == (RunStatus.CANCELLED, story.now, "run.cancelled")
    assert story.refuses(Cancel()) == "ended"
    assert story.refuses(claim()).refusal == "ended"


def test_a_running_run_is_asked_to_stop() -> None:
    story = Story(claim())
    rev = story.run.rev
    assert story.does(Cancel()) == "requested"
    assert (story.run.status, story.run.rev) == (RunStatus.RUNNING, rev + 1)
    assert story.refuses(Cancel()) == "requested"
    assert story.does(append()) == Ack(True, 3, cancelled=True)


def test_force_can_follow_a_cancel_and_stays() -> None:
    story = Story(claim(), Cancel())
    rev = story.run.rev
    assert story.does(Cancel(force=True)) == "requested"
    assert story.run.rev == rev
    story.refuses(Cancel())
    assert story.does(append()).force


def test_no_run_cannot_be_cancelled() -> None:
    assert apply(None, Cancel(), 1).reply == "missing"

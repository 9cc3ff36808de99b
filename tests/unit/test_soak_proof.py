"""The soak's proof sees what it is there to see: each rule holds for a sound record and fails on a bad one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from app.client import Received
from app.models.event import (
    NODE_COMPLETED,
    NODE_STARTED,
    RESET,
    RUN_CANCELLED,
    RUN_COMPLETED,
    RUN_FAILED,
    RUN_QUEUED,
    RUN_REROUTED,
    RUN_STARTED,
    Event,
)
from app.models.run import Run, RunError, RunStatus
from tests.soak.faults import DISPATCHERS, KINDS, RECOVERS_S, Fault, Log, plan
from tests.soak.flows import FAILING, HALFWAY, SHORT, FlowSpec, counter_key
from tests.soak.proof import Leftovers, Post, Seen, Told, Trace, Violation, knows_only_the_living, left_nothing, prove
from tests.soak.report import longest_recovery

Step = tuple[int, str] | tuple[int, str, str]

ONCE: list[Step] = [
    (1, RUN_QUEUED),
    (1, RUN_STARTED),
    (1, NODE_STARTED, "once"),
    (1, NODE_COMPLETED, "once"),
    (1, RUN_COMPLETED),
]
TAKEN_OVER: list[Step] = [
    (1, RUN_QUEUED),
    (1, RUN_STARTED),
    (1, NODE_STARTED, "before"),
    (1, NODE_COMPLETED, "before"),
    (1, NODE_STARTED, "wait"),
    (2, RUN_REROUTED),
    (2, RUN_STARTED),
    (2, NODE_COMPLETED, "before"),
    (2, NODE_STARTED, "wait"),
    (2, RUN_COMPLETED),
]


def trace(steps: list[Step] = ONCE, *, witnesses: tuple[str, ...] = (), **changes: Any) -> Trace:
    """A record of a completed run whose events are ``steps`` and which is what they say, but for ``changes``."""
    counts = changes.pop("counts", None)
    run = Run(
        run_id="r1",
        deployment_id="d",
        variant="only",
        flow_id="f",
        version_id="v",
        target_role="alpha",
        created_ms=0,
        status=RunStatus.COMPLETED,
        attempt=steps[-1][0],
        seq=len(steps),
        input={"request": "q1"},
        ended_ms=1000 + len(steps),
    )
    run = replace(run, **changes)
    data = None if run.error is None else {"error": run.error.to_wire()}
    events = [
        Event(run.run_id, seq, step[0], step[1], 1000 + seq, step[2] if len(step) == 3 else None)
        for seq, step in enumerate(steps, 1)
    ]
    events[-1] = replace(events[-1], data=data)
    named = {"once": 1, "before": 1, "after": 1} if counts is None else counts
    return Trace(run, events, witnesses, {counter_key("q1", name): count for name, count in named.items()})


def failed(code: str, **changes: Any) -> Trace:
    steps: list[Step] = [*ONCE[:-1], (1, RUN_FAILED)]
    return trace(steps, status=RunStatus.FAILED, error=RunError(code, "text", 1), **changes)


def refused(steps: list[Step], *, witnesses: tuple[str, ...] = ()) -> Trace:
    error = RunError("not_accepted", "text", 1)
    return trace(steps, status=RunStatus.FAILED, error=error, witnesses=witnesses)


def broken(
    *traces: Trace,
    flow: FlowSpec = SHORT,
    posts: tuple[Post, ...] | None = None,
    told: tuple[Told, ...] = (),
    cancels: tuple[str, ...] = (),
) -> list[str]:
    """Return the rules that a proof of these records finds broken."""
    if posts is None:
        posts = tuple(Post(each.request, "d", True, "accepted", each.run.run_id) for each in traces)
    known = {each.run.run_id: each for each in traces}
    found = prove(known, flows={"d": flow}, posts=posts, told=told, cancels=cancels, max_losses=3)
    return [violation.rule for violation in found]


def test_sound_records_break_no_rule() -> None:
    assert broken(trace()) == []
    assert broken(trace(TAKEN_OVER, witnesses=("first", "first", "second")), flow=HALFWAY) == []
    assert broken(failed("PERMANENT"), flow=FAILING) == []
    assert broken(failed("worker_lost", losses=3)) == []
    assert broken(refused(ONCE[:1]), posts=(Post("q1", "d", True, "refused"),)) == []


def test_a_run_that_has_not_ended_is_seen() -> None:
    assert broken(trace(ONCE[:-1], status=RunStatus.RUNNING, ended_ms=None)) == ["ended", "one end"]


def test_two_ends_and_events_after_the_end_are_seen() -> None:
    assert broken(trace([*ONCE[:-1], (1, RUN_CANCELLED), (1, RUN_COMPLETED)])) == ["one end"]
    after = broken(trace([*ONCE, (1, NODE_STARTED, "once")]))
    assert "one end" in after
    assert "truthful end" in after


def test_gaps_doubles_and_missing_last_events_are_seen() -> None:
    sound = trace()
    for events in (sound.events[1:], [*sound.events[:2], *sound.events[3:]], [sound.events[0], *sound.events]):
        assert "gapless" in broken(replace(sound, events=events))
    assert broken(trace(seq=9)) == ["gapless"]


def test_an_end_that_its_last_event_does_not_tell_is_seen() -> None:
    assert "truthful end" in broken(trace(status=RunStatus.CANCELLED), cancels=("r1",))
    assert broken(trace(output={"a": 1})) == ["truthful end"]
    other = failed("PERMANENT")
    assert broken(replace(other, run=other.run.with_(error=RunError("PERMANENT", "x", 2))), flow=FAILING) == [
        "truthful end"
    ]


def test_an_attempt_that_wrote_after_it_was_fenced_is_seen() -> None:
    late: list[Step] = [*TAKEN_OVER[:7], (1, NODE_COMPLETED, "wait"), *TAKEN_OVER[7:]]
    assert broken(trace(late, witnesses=("first", "second")), flow=HALFWAY) == ["fenced"]


def test_an_attempt_that_started_twice_and_a_wrong_last_attempt_are_seen() -> None:
    assert broken(trace([*ONCE[:2], (1, RUN_STARTED), *ONCE[2:]])) == ["fenced"]
    assert broken(trace(attempt=2)) == ["fenced"]


def test_a_first_half_that_ran_again_is_seen_in_the_events() -> None:
    again: list[Step] = [*TAKEN_OVER[:7], (2, NODE_STARTED, "before"), *TAKEN_OVER[7:]]
    assert broken(trace(again), flow=HALFWAY) == ["checkpoint"]


def test_a_first_half_that_ran_again_before_its_checkpoint_breaks_no_rule() -> None:
    again: list[Step] = [step for step in TAKEN_OVER if step != (1, NODE_STARTED, "wait")]
    again.insert(6, (2, NODE_STARTED, "before"))
    assert broken(trace(again), flow=HALFWAY) == []


def test_a_first_half_that_ran_again_is_seen_by_its_witnesses() -> None:
    assert broken(trace(TAKEN_OVER, witnesses=("first", "second", "first")), flow=HALFWAY) == ["checkpoint"]


@pytest.mark.parametrize("count", [0, 2])
def test_a_completed_run_that_did_not_count_exactly_once_is_seen(count: int) -> None:
    assert broken(trace(counts={"once": count})) == ["counted once"]


def test_a_run_that_did_not_complete_may_have_counted_or_not() -> None:
    for count in (0, 1):
        assert broken(failed("worker_lost", losses=3, counts={"once": count})) == []
    assert broken(failed("worker_lost", losses=3, counts={"once": 2})) == ["counted once"]


def test_an_end_without_a_reason_is_seen() -> None:
    cancelled = trace([*ONCE[:-1], (1, RUN_CANCELLED)], status=RunStatus.CANCELLED)
    assert broken(cancelled) == ["reason"]
    assert broken(cancelled, cancels=("r1",)) == []
    assert broken(failed("mongo_unavailable")) == ["reason"]
    assert broken(failed("worker_lost", losses=2)) == ["reason"]
    assert broken(trace(), flow=FAILING) == ["reason"]


def test_a_refused_run_that_was_begun_is_seen() -> None:
    posts = (Post("q1", "d", True, "refused"),)
    assert broken(refused(ONCE), posts=posts) == ["refused"]
    assert broken(refused(ONCE[:1], witnesses=("first",)), posts=posts) == ["refused"]


def test_an_accepted_run_that_is_not_on_record_is_seen() -> None:
    accepted = Post("q1", "d", True, "accepted", "r1")
    assert broken(posts=(accepted,)) == ["accepted"]
    assert broken(refused(ONCE[:1]), posts=(accepted,)) == ["accepted"]


def test_a_request_that_made_two_runs_is_seen() -> None:
    one, two = trace(), trace(run_id="r2")
    assert broken(one, two, posts=(Post("q1", "d", True, "accepted", "r1"),)) == ["one run a request"]


def test_a_refused_request_that_made_a_run_and_a_run_without_a_request_are_seen() -> None:
    assert broken(trace(), posts=(Post("q1", "d", True, "refused"),)) == ["one run a request"]
    assert broken(trace(), posts=()) == ["one run a request"]
    assert broken(trace(), posts=(Post("q1", "d", False, "unknown"),)) == []


def test_a_follower_that_missed_or_doubled_an_event_or_gave_up_is_seen() -> None:
    sound = trace()
    log = [Seen(e.seq, e.attempt, e.type, e.node) for e in sound.events]
    assert broken(sound, told=(Told("r1", log),)) == []
    for seen in ([], log[:-1], log[1:], [*log[:2], *log[1:]], [*log[:1], *log[2:]]):
        assert broken(sound, told=(Told("r1", seen),)) == ["one story"]
    assert broken(sound, told=(Told("r1", log, broken="no answer"),)) == ["one story"]


def anew(epoch: int = 1) -> Trace:
    """A record of a run that was made anew so often."""
    sound = trace(epoch=epoch)
    return replace(sound, events=[replace(event, epoch=epoch) for event in sound.events])


def hears(told: Told, events: Iterable[Event]) -> None:
    for event in events:
        told.hear(Received(str(event.place), event.to_wire(), event.type))


def resets(told: Told, epoch: int) -> None:
    told.hear(Received(f"{epoch}:0", {"run_id": "r1", "epoch": epoch}, RESET))


def test_events_of_a_lost_story_in_the_record_are_seen() -> None:
    assert broken(anew()) == []
    sound = anew()
    assert broken(replace(sound, events=[*trace().events[:2], *sound.events[2:]])) == ["gapless"]
    assert broken(trace(epoch=1)) == ["gapless"]


@pytest.mark.parametrize("seen", [0, 1, 5])
def test_a_follower_who_was_reset_has_the_new_story(seen: int) -> None:
    told = Told("r1")
    hears(told, trace().events[:seen])
    resets(told, 2)
    assert broken(anew(2), told=(told,)) == ["one story"]
    assert not told.over
    hears(told, anew(2).events)
    assert broken(anew(2), told=(told,)) == []
    assert told.last_id == "2:5"


def test_a_follower_who_was_not_reset_or_for_nothing_or_saw_gaps_before_is_seen() -> None:
    old, new = trace().events, anew().events
    unaware, aimless, gaps = Told("r1"), Told("r1"), Told("r1")
    hears(unaware, [*old[:2], *new[2:]])
    hears(aimless, new[:3])
    resets(aimless, 1)
    hears(gaps, [old[0], old[2]])
    resets(gaps, 1)
    for told in (aimless, gaps):
        hears(told, new)
    for told in (unaware, aimless, gaps):
        assert broken(anew(), told=(told,)) == ["one story"]


def test_the_dead_and_the_missing_in_the_register_are_seen() -> None:
    assert knows_only_the_living({1, 2}, {1, 2}) == []
    assert [str(each) for each in knows_only_the_living({1, 2}, {2, 3})] == [
        "register: process 1 is registered and dead",
        "register: process 3 is not registered",
    ]


def test_what_is_left_in_the_live_store_is_seen() -> None:
    assert left_nothing(Leftovers({"leases": [], "queued:alpha": []})) == []
    assert left_nothing(Leftovers({"leases": ["r1"]}, {"run:r1"})) == [
        Violation("live state", "the index 'leases' still has it", "r1"),
        Violation("live state", "the key 'run:r1' never expires"),
    ]


def test_a_seed_makes_the_same_plan_again_and_two_minutes_hold_every_kind() -> None:
    for seed in range(30):
        faults = plan(seed, 120)
        assert faults == plan(seed, 120)
        assert {fault.kind for fault in faults} == set(KINDS)
        assert all(0 < fault.at_s < 120 for fault in faults)
    assert plan(1, 120) != plan(2, 120)


def test_no_plan_takes_both_dispatchers_or_lays_two_faults_on_one_target() -> None:
    for seed in range(30):
        free_at: Counter[str] = Counter()
        for fault in plan(seed, 600):
            claims = ("dispatchers",) if fault.target in DISPATCHERS else fault.claims
            for claim in claims:
                assert fault.at_s >= free_at[claim] - 0.02
                free_at[claim] = fault.at_s + fault.lasts_s + RECOVERS_S  # type: ignore[assignment]


def test_the_longest_recovery_is_measured_from_the_last_fault_before_a_reroute() -> None:
    log = Log(
        [
            (500, Fault(0, "kill worker", "alpha1", 1)),
            (1002, Fault(1, "kill child", "beta1", 0)),
            (1008, Fault(2, "drop redis", "redis", 0)),
        ]
    )
    found = longest_recovery([trace(), trace(TAKEN_OVER, ended_ms=4002)], log)
    assert found is not None
    assert (found.seconds, found.fault, found.run_id) == (3.0, "kill child beta1", "r1")
    assert longest_recovery([trace()], log) is None

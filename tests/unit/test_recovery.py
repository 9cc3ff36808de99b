"""Redis loses everything, or comes back seconds old, or acceptance is cut off: the ledger brings the runs back."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from app.live.memory import MemoryLive
from app.models.event import Place
from app.models.run import Run, RunError, RunStatus
from app.ports import Page
from app.runs.recovery import GRACE_MS
from tests.integration.flows import counting
from tests.unit.test_rescue import LEASE_S, PERIOD_S, Keepers

RECOVERY_S = 5 * PERIOD_S


@pytest.fixture
def world() -> Keepers:
    world = Keepers("worker")
    world.deploy("shop", counting("shop"), only=(1, ["worker"]))
    world.live_on(RECOVERY_S)
    assert world.live.trusted()
    return world


def lose(world: Keepers, *run_ids: str) -> None:
    assert isinstance(world.live, MemoryLive)
    world.live.lose(*run_ids)


def test_runs_that_redis_lost_are_made_anew_and_end(world: Keepers) -> None:
    runs = [world.start() for _ in range(5)]
    world.claim("worker")
    world.live_on(PERIOD_S)
    lose(world)
    world.nudges.sent.clear()
    world.live_on(RECOVERY_S)
    assert world.work("worker") == ["completed"] * 5
    world.live_on(PERIOD_S)
    for run in runs:
        recorded = world.store.get_run(run.run_id)
        assert recorded is not None
        assert (recorded.status, recorded.attempt, recorded.epoch, recorded.losses) == (RunStatus.COMPLETED, 2, 1, 0)
        assert recorded.created_ms == run.created_ms
        events = world.runs.events(run.run_id)
        assert [event.place for event in events] == [Place(seq, 1) for seq in range(1, len(events) + 1)]
        assert events[0].data is not None
        assert events[0].data["reason"] == "live_state_lost"
    assert world.store.counter("shop") == 5


def test_a_run_cancelled_before_redis_lost_it_is_not_run_again(world: Keepers) -> None:
    run = world.start()
    world.claim("worker")
    world.runs.cancel(run.run_id)
    lose(world)
    world.live_on(RECOVERY_S)
    assert world.run(run).status is RunStatus.CANCELLED
    assert world.work("worker") == []


def test_a_run_that_ended_on_record_is_not_run_again_by_an_old_copy(world: Keepers) -> None:
    run = world.start()
    live = world.live
    assert isinstance(live, MemoryLive)
    old = copy.deepcopy({name: vars(live)[name] for name in ("_states", "_events")})
    world.work("worker")
    world.live_on(PERIOD_S)
    assert world.store.get_run(run.run_id).status is RunStatus.COMPLETED  # type: ignore[union-attr]
    lose(world)
    vars(live).update(old)
    assert world.run(run).status is RunStatus.QUEUED
    world.live_on(RECOVERY_S)
    assert world.run(run).status is RunStatus.COMPLETED
    assert world.work("worker") == ["missing"], "the message that the copy had is of a run that is no more"
    assert world.store.counter("shop") == 1


def test_a_run_of_which_redis_has_an_old_copy_is_made_anew(world: Keepers) -> None:
    run = world.start()
    live = world.live
    assert isinstance(live, MemoryLive)
    old = copy.deepcopy({name: vars(live)[name] for name in ("_states", "_events")})
    world.claim("worker")
    world.live_on(PERIOD_S)
    lose(world)
    vars(live).update(old)
    world.live_on(RECOVERY_S)
    again = world.run(run)
    assert (again.status, again.attempt, again.epoch) == (RunStatus.QUEUED, 2, 1)
    assert not world.live.append(run.run_id, "lost", 1, []).ok, "whoever had it is fenced"
    assert world.work("worker")[0] == "completed"
    assert world.store.counter("shop") == 1


def test_a_run_whose_acceptance_was_cut_off_is_queued_without_anybodys_asking(world: Keepers) -> None:
    run = world.start()
    lose(world, run.run_id)
    world.live.trust()  # nothing was lost: the accepting process died between the ledger and Redis
    world.nudges.sent.clear()
    world.live_on(GRACE_MS / 1000 - PERIOD_S)
    assert world.live.get(run.run_id) is None, "it may still be on its way"
    world.live_on(RECOVERY_S + 2 * PERIOD_S)
    assert world.work("worker") == ["completed"]


def test_nothing_is_made_anew_while_nothing_was_lost(world: Keepers) -> None:
    runs = [world.start() for _ in range(3)]
    world.claim("worker")
    world.live_on(LEASE_S - 2 * PERIOD_S)
    assert {world.run(run).epoch for run in runs} == {0}


def test_a_run_cancelled_before_its_live_state_is_back_ends_with_its_whole_story(world: Keepers) -> None:
    run = world.start()
    lose(world, run.run_id)
    assert world.runs.cancel(run.run_id).status is RunStatus.CANCELLED
    world.live_on(RECOVERY_S)
    assert world.types(run) == ["run.queued", "run.cancelled"]
    assert world.work("worker") == ["ended"]


def test_whoever_asks_again_for_a_run_whose_acceptance_was_cut_off_gets_it_queued(world: Keepers) -> None:
    run = world.start(idempotencyKey="k")
    lose(world, run.run_id)
    world.nudges.sent.clear()
    assert world.start(idempotencyKey="k").run_id == run.run_id
    assert world.work("worker") == ["completed"]
    assert world.start(idempotencyKey="k").run_id == run.run_id
    assert world.nudges.sent == []


def test_an_end_whose_story_was_lost_with_redis_is_not_recorded(world: Keepers) -> None:
    run = world.start()
    world.work("worker")
    ended = world.live.get(run.run_id)
    assert ended is not None
    lose(world)
    changed = [ended]  # another dispatcher had read it just before

    def once(limit: int) -> list[Run]:
        return [changed.pop()] if changed else []

    world.live.changed = once  # type: ignore[method-assign]
    world.housekeeping.mirror()
    recorded = world.store.get_run(run.run_id)
    assert recorded is not None
    assert recorded.status is RunStatus.QUEUED


def test_a_run_whose_end_is_recorded_while_it_is_made_anew_is_not_run_again(world: Keepers) -> None:
    run = world.start()
    world.work("worker")
    ended = world.live.get(run.run_id)
    assert ended is not None
    lose(world)
    list_runs = world.store.list_runs

    def then_its_end_comes(*args: Any, **options: Any) -> Page[Run]:
        page = list_runs(*args, **options)
        world.store.mirror_run(ended)
        return page

    world.store.list_runs = then_its_end_comes  # type: ignore[method-assign]
    world.live_on(RECOVERY_S)
    assert world.live.get(run.run_id) is None
    assert world.run(run).status is RunStatus.COMPLETED


def test_a_run_lost_again_before_the_ledger_has_heard_of_it_gets_another_epoch(world: Keepers) -> None:
    run = world.start()
    epochs = []
    for _ in range(2):
        lose(world)
        while (again := world.live.get(run.run_id)) is None:
            world.live_on(PERIOD_S)
        epochs.append(again.epoch)
    assert epochs == [1, 2]


@pytest.mark.parametrize("how", ["completed", "failed", "cancelled"])
def test_an_end_that_redis_lost_after_its_story_was_recorded_is_read_from_the_story(world: Keepers, how: str) -> None:
    run = world.start()
    if how == "completed":
        world.work("worker")
    elif how == "cancelled":
        world.live.cancel(run.run_id)
    else:
        world.live.fail_queued(run.run_id, attempt=1, error=RunError("queue_timeout", "nobody came", 1))
    ended = world.live.get(run.run_id)
    assert ended is not None
    world.store.append_events(run.run_id, world.live.events(run.run_id))
    lose(world)
    world.live_on(RECOVERY_S)
    recorded = world.store.get_run(run.run_id)
    assert recorded is not None
    for field in ("status", "attempt", "output", "error", "ended_ms", "seq", "epoch"):
        assert getattr(recorded, field) == getattr(ended, field), field
    assert recorded.status.value == how
    assert "completed" not in world.work("worker")


def test_a_part_of_a_lost_story_does_not_stay_under_the_new_one(world: Keepers) -> None:
    run = world.start()
    world.work("worker")
    world.store.append_events(run.run_id, world.live.events(run.run_id, limit=3))
    lose(world)
    world.live_on(RECOVERY_S)
    assert world.work("worker")[0] == "completed"
    world.live_on(PERIOD_S)
    events = world.store.events(run.run_id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert {event.epoch for event in events} == {1}
    assert events[-1].terminal

"""Whatever becomes of workers, nudges and roles, a run goes on or ends: a Rolecall in memory, its clock by hand."""

from __future__ import annotations

from typing import Any

import pytest

from app.models.run import Run, RunStatus
from app.runs.rescue import MOVE_AFTER_S, NUDGE_AGAIN_S, PAUSES_MS, NextRole
from tests.integration.flows import counting
from tests.memory_world import MemoryWorld

PERIOD_S = 2.0
LEASE_S = 30.0


class Keepers(MemoryWorld):
    """A dispatcher keeps house every two seconds while the workers of ``alive`` beat."""

    def __init__(self, *alive: str, **settings: Any) -> None:
        super().__init__(**settings)
        self.alive = list(alive)
        self.lease_s = LEASE_S
        self.beat("dispatcher", *alive)

    def live_on(self, seconds: float) -> None:
        until = self.now_s + seconds
        while self.now_s < until:
            self.now_s += PERIOD_S
            self.beat("dispatcher", *self.alive)
            self.housekeeping.round()

    def start(self, deployment: str = "shop", **body: Any) -> Run:
        self.now_s += 0.001
        return self.runs.start(deployment, {"input": {}, **body})

    def claim(self, role: str, token: str = "lost") -> Run:
        """A worker takes the oldest nudge of its role and is never heard of again."""
        nudge = self.take(role)
        assert nudge is not None
        run = self.live.claim(nudge.run_id, worker=self.worker(role), token=token, ttl_ms=int(self.lease_s * 1000)).run
        assert run is not None
        return run


@pytest.fixture
def world() -> Keepers:
    world = Keepers("worker", "gpu-worker")
    world.deploy("shop", counting("shop"), only=(1, ["worker"]))
    world.deploy("both", counting("both"), only=(1, ["worker", "gpu-worker"]))
    return world


def told(world: Keepers, run: Run) -> int:
    """How many nudges of a run lie in the queues."""
    return sum(1 for nudge in world.nudges.sent if nudge.run_id == run.run_id)


# --- lost workers ------------------------------------------------------------------------------------------------


def test_a_run_whose_worker_is_lost_is_taken_over_within_the_bound(world: Keepers) -> None:
    run = world.start()
    world.claim("worker")
    world.live_on(LEASE_S + PERIOD_S)
    waiting = world.run(run)
    assert (waiting.status, waiting.attempt, waiting.losses) == (RunStatus.QUEUED, 2, 1)
    world.live_on(PAUSES_MS[0] / 1000 + PERIOD_S)
    assert world.work("worker") == ["completed"]
    assert world.types(run) == [
        "run.queued", "run.started", "run.rerouted", "run.started",
        "node.started", "node.completed", "node.started", "log", "node.completed", "run.completed",
    ]  # fmt: skip


def test_a_lease_that_is_renewed_is_nobodys_to_break(world: Keepers) -> None:
    run = world.start()
    world.claim("worker")
    for _ in range(6):
        world.live_on(10)
        world.live.renew([(run.run_id, "lost")], ttl_ms=int(LEASE_S * 1000))
    assert (world.run(run).status, world.run(run).attempt) == (RunStatus.RUNNING, 1)


def test_the_third_loss_is_the_last(world: Keepers) -> None:
    run = world.start()
    for loss in range(3):
        world.claim("worker", f"token-{loss}")
        world.live_on(LEASE_S + 30 + 2 * PERIOD_S)
    lost = world.run(run)
    assert (lost.status, lost.losses, lost.attempt) == (RunStatus.FAILED, 3, 3)
    assert lost.error is not None
    assert lost.error.code == "worker_lost"
    assert world.types(run)[-1] == "run.failed"


def test_losses_are_followed_by_longer_and_longer_pauses(world: Keepers) -> None:
    run = world.start()
    for pause_ms in PAUSES_MS[:2]:
        claimed = world.claim("worker", f"token-{pause_ms}")
        world.live_on(LEASE_S + PERIOD_S)
        broken = world.run(run)
        assert broken.attempt == claimed.attempt + 1
        assert pause_ms - PERIOD_S * 1000 <= broken.not_before_ms - world.clock() <= pause_ms
        world.live_on(pause_ms / 1000 + PERIOD_S)


def test_the_run_of_a_dead_role_goes_to_another_role_of_its_variant(world: Keepers) -> None:
    run = world.start("both")
    lost_role = world.run(run).target_role
    other = {"worker": "gpu-worker", "gpu-worker": "worker"}[lost_role]
    world.claim(lost_role)
    world.alive.remove(lost_role)
    world.live_on(LEASE_S + 2 * PERIOD_S)
    assert world.run(run).target_role == other
    rerouted = [event for event in world.runs.events(run.run_id) if event.type == "run.rerouted"]
    assert rerouted[0].data == {"from": lost_role, "to": other, "reason": "worker_lost"}
    world.live_on(2 * PERIOD_S)
    assert world.work(other) == ["completed"]


def test_a_pause_of_redis_is_no_death_of_its_workers(world: Keepers) -> None:
    run = world.start()
    world.claim("worker")
    world.live_on(8)
    world.now_s += 120  # nobody beats, nobody keeps house, nobody renews
    world.live_on(LEASE_S - 2 * PERIOD_S)
    assert (world.run(run).status, world.run(run).losses) == (RunStatus.RUNNING, 0)
    world.live.renew([(run.run_id, "lost")], ttl_ms=int(LEASE_S * 1000))
    world.live_on(10)
    assert (world.run(run).attempt, world.run(run).losses) == (1, 0)


def test_a_run_asked_to_cancel_whose_worker_is_lost_ends_cancelled(world: Keepers) -> None:
    run = world.start()
    world.claim("worker")
    world.runs.cancel(run.run_id)
    world.live_on(LEASE_S + PERIOD_S)
    assert world.run(run).status is RunStatus.CANCELLED


def test_what_a_fenced_worker_says_late_is_not_written(world: Keepers) -> None:
    run = world.start()
    world.claim("worker")
    world.live_on(LEASE_S + 2 * PERIOD_S + 1)
    assert world.work("worker") == ["completed"]
    seq = world.run(run).seq
    assert not world.live.append(run.run_id, "lost", 1, []).ok
    assert world.run(run).seq == seq


# --- lost nudges -------------------------------------------------------------------------------------------------


def test_a_run_whose_nudge_was_lost_is_told_of_again(world: Keepers) -> None:
    runs = [world.start() for _ in range(3)]
    world.nudges.sent.pop(0)
    world.live_on(PERIOD_S)
    assert [told(world, run) for run in runs] == [1, 1, 1]
    assert world.work("worker") == ["completed"] * 3


def test_a_run_that_still_has_its_message_is_not_told_of(world: Keepers) -> None:
    run = world.start()
    world.live_on(NUDGE_AGAIN_S - PERIOD_S)
    assert told(world, run) == 1


def test_a_run_is_told_of_again_at_most_once_in_a_while(world: Keepers) -> None:
    run = world.start()
    world.nudges.sent.clear()
    world.live_on(NUDGE_AGAIN_S - PERIOD_S)
    assert told(world, run) == 1
    world.nudges.sent.clear()
    world.live_on(2 * PERIOD_S)
    assert told(world, run) == 1


def test_a_run_behind_the_doubled_message_of_another_is_told_of(world: Keepers) -> None:
    lost, other = world.start(), world.start()
    del world.nudges.sent[0]
    world.nudges.sent.append(world.nudges.sent[0])
    world.live_on(NUDGE_AGAIN_S + PERIOD_S)
    assert told(world, lost) == 1
    assert set(world.work("worker")) == {"completed", "ended"}
    assert world.run(lost).status is world.run(other).status is RunStatus.COMPLETED


def test_a_run_in_its_pause_is_not_told_of(world: Keepers) -> None:
    run = world.start()
    world.claim("worker")
    world.live.retry(run.run_id, "lost", 1, [], code="timed_out", pause_ms=60_000)
    world.live_on(40)
    assert told(world, run) == 0
    world.live_on(20 + PERIOD_S)
    assert told(world, run) == 1


def test_a_broker_that_is_away_holds_up_nothing_else(world: Keepers) -> None:
    run, other = world.start(), world.start("both")
    world.nudges.sent.remove(next(nudge for nudge in world.nudges.sent if nudge.run_id == run.run_id))
    world.runs.cancel(other.run_id)
    world.nudges.down = True
    world.live_on(2 * PERIOD_S)
    assert world.store.get_run(other.run_id).status is RunStatus.CANCELLED  # type: ignore[union-attr]
    world.nudges.down = False
    world.live_on(PERIOD_S)
    assert world.work("worker")[:1] == ["completed"]


# --- dead and full roles -----------------------------------------------------------------------------------------


def test_a_run_that_waits_for_a_dead_role_goes_to_one_that_lives(world: Keepers) -> None:
    run = world.start("both")
    dead = world.run(run).target_role
    world.alive.remove(dead)
    world.live_on(LEASE_S + MOVE_AFTER_S + PERIOD_S)
    moved = world.run(run)
    assert moved.target_role != dead
    assert (moved.attempt, moved.losses) == (1, 0)
    data = [event.data for event in world.runs.events(run.run_id) if event.type == "run.rerouted"]
    assert data == [{"from": dead, "to": moved.target_role, "reason": "no_workers"}]
    assert world.work(moved.target_role)[0] == "completed"


def test_a_run_that_waits_for_a_full_role_goes_to_one_with_a_free_slot(world: Keepers) -> None:
    for _ in range(2):
        world.start("shop")
        world.claim("worker", f"busy-{_}")
    run = world.start("both")
    assert world.live.move(run.run_id, attempt=1, role="worker", reason="test")
    world.live_on(MOVE_AFTER_S + PERIOD_S)
    assert world.run(run).target_role == "gpu-worker"
    assert world.runs.events(run.run_id)[-1].data == {"from": "worker", "to": "gpu-worker", "reason": "saturated"}


def test_a_run_goes_nowhere_that_its_variant_does_not_allow(world: Keepers) -> None:
    run = world.start("shop")
    world.alive.remove("worker")
    world.live_on(300)
    assert (world.run(run).target_role, world.run(run).status) == ("worker", RunStatus.QUEUED)
    world.alive.append("worker")
    world.live_on(NUDGE_AGAIN_S + PERIOD_S)
    assert "completed" in world.work("worker")


# --- old age -----------------------------------------------------------------------------------------------------


def test_a_run_that_nobody_took_in_time_fails(world: Keepers) -> None:
    world = Keepers("worker", queue_timeout_s=60.0)
    world.deploy("shop", counting("shop"), only=(1, ["worker"]))
    run = world.start()
    world.alive.clear()
    world.live_on(60 + PERIOD_S)
    failed = world.run(run)
    assert failed.status is RunStatus.FAILED
    assert failed.error is not None
    assert (failed.error.code, failed.error.message) == ("queue_timeout", "no worker of role 'worker' took it in 60 s")


def test_a_run_that_expires_fails_and_a_worker_that_comes_later_skips_it(world: Keepers) -> None:
    run = world.start(expiresAt="1970-01-12T13:47:00Z")  # 20 s after the world's first moment
    world.now_s += 21
    world.beat("dispatcher", "worker")
    assert world.work("worker") == ["expired"]
    world.live_on(PERIOD_S)
    failed = world.run(run)
    assert failed.error is not None
    assert (failed.status, failed.error.code) == (RunStatus.FAILED, "expired")


def test_a_run_that_has_started_before_its_expiry_goes_on(world: Keepers) -> None:
    run = world.start(expiresAt="1970-01-12T13:47:00Z")
    world.claim("worker")
    world.live_on(LEASE_S + 3 * PERIOD_S)
    assert world.run(run).status is RunStatus.QUEUED
    assert world.work("worker") == ["completed"]


# --- kept for good -----------------------------------------------------------------------------------------------


def test_what_has_ended_leaves_redis_when_it_is_on_record(world: Keepers) -> None:
    run = world.start()
    world.work("worker")
    before = world.runs.events(run.run_id)
    world.live_on(PERIOD_S)
    assert world.live.get(run.run_id) is not None
    world.live_on(2 * LEASE_S + PERIOD_S)
    assert world.live.get(run.run_id) is None
    assert world.live.open_runs() == []
    assert world.run(run).status is RunStatus.COMPLETED
    assert world.runs.events(run.run_id) == before
    assert world.store.journal(run.run_id) == []


# --- who goes on -------------------------------------------------------------------------------------------------


def test_the_next_role_is_one_that_the_variant_allows_and_that_can_now(world: Keepers) -> None:
    services = world.services
    chosen = NextRole(live=world.live, register=services.register, catalog=services.catalog, default_role=None)
    run = world.run(world.start("both"))
    other = {"worker": "gpu-worker", "gpu-worker": "worker"}[run.target_role]
    world.beat(run.target_role, draining=True)
    assert chosen.now(run) == other
    world.beat(other, draining=True)
    assert chosen.now(run) is None
    world.now_s += 60
    world.beat("dispatcher")
    assert chosen.now(run) is None, "after a gap nobody knows"

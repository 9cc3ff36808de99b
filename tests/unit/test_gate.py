"""The gate before a start: nothing is written when Redis or the broker cannot take it."""

from __future__ import annotations

import pytest

from app.dispatch.memory import MemoryDispatcher
from app.errors import OutOfMemory, ServerUnavailable, TooManyQueued
from app.live.memory import MemoryLive
from app.models.run import Run
from app.runs.gate import Gate


class Live(MemoryLive):
    room = True
    asked = 0

    def headroom(self) -> bool:
        self.asked += 1
        return self.room


class World:
    def __init__(self, cap: int = 10) -> None:
        self.now = 100.0
        self.live = Live(lambda: int(self.now * 1000))
        self.dispatcher = MemoryDispatcher()
        self.gate = Gate(self.live, self.dispatcher, monotonic=lambda: self.now, depth_cap=cap)

    def queue(self, *run_ids: str) -> None:
        for run_id in run_ids:
            self.live.create(Run(run_id, "d", "v", "f", "v1", "worker", created_ms=0))


def test_a_healthy_world_lets_runs_in_and_is_asked_once_a_second() -> None:
    world = World()
    for _ in range(5):
        world.gate.check("worker")
    assert world.live.asked == 1
    world.now += 1.1
    world.gate.check("worker")
    assert world.live.asked == 2


def test_a_full_redis_is_refused() -> None:
    world = World()
    world.live.room = False
    with pytest.raises(OutOfMemory) as caught:
        world.gate.check("worker")
    assert caught.value.code == "redis_full"


def test_a_broker_that_is_away_is_refused_at_once_for_a_second_and_then_asked_again() -> None:
    world = World()
    world.dispatcher.down = True
    with pytest.raises(ServerUnavailable, match="broker"):
        world.gate.check("worker")
    world.dispatcher.down = False
    with pytest.raises(ServerUnavailable, match="broker"):
        world.gate.check("worker")
    world.now += 1.1
    world.gate.check("worker")


def test_a_role_at_its_cap_is_refused_with_its_depth_and_other_roles_are_not() -> None:
    world = World(cap=2)
    world.queue("a", "b")
    with pytest.raises(TooManyQueued, match=r"'worker' has 2 runs queued and its cap is 2"):
        world.gate.check("worker")
    world.gate.check("gpu-worker")


def test_what_was_let_in_within_the_second_counts() -> None:
    world = World(cap=2)
    world.gate.check("worker")
    world.gate.check("worker")
    with pytest.raises(TooManyQueued):
        world.gate.check("worker")

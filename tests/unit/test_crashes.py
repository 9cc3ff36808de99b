"""A process that dies between any two steps loses nothing: the others, and its successor, bring every run to one end.

Every call to a server is a step. For each way through Rolecall, and each step of it, the process dies once before and
once after the step (its answer is lost with it); then life goes on, and the records must be whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.models.run import Run, RunStatus
from app.ports import RunFilter
from app.wiring import keepers
from tests.integration.flows import counting, document, node
from tests.unit.test_rescue import LEASE_S, Keepers

NO_STEPS = {"ping", "headroom", "get", "events", "queues", "close", "count"}
"""They change nothing, or (``count``) are called inside of a handler, which the engine lets nothing out of."""


class Death(BaseException):
    """The process is gone. No ``except`` of the product catches this; what a ``finally`` does is beside the point."""


class Doomed:
    """A server whose caller dies at one of its calls."""

    def __init__(self, server: Any, world: Mortal) -> None:
        self._server = server
        self._world = world

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._server, name)
        if not callable(method) or name in NO_STEPS:
            return method

        def step(*args: Any, **options: Any) -> Any:
            self._world.tread("before")
            answer = method(*args, **options)
            self._world.tread("after")
            return answer

        return step


class Mortal(Keepers):
    """A world in which one process can be told at which step to die."""

    def __init__(self) -> None:
        super().__init__("worker")
        self.deploy("shop", counting("shop"), only=(1, ["worker"]))
        half = {
            "before": node("core/count", key="before"),
            "half": {**node("core/log", message="half"), "kind": "checkpoint"},
            "after": node("core/count", key="after"),
        }
        raw = document("half", half).replace(b'"direct"', b'"checkpoint"')
        self.deploy("half", raw, only=(1, ["worker"]))
        self.live_on(10)
        self.steps = 0
        self.dies_at: int | None = None
        self.when = "before"

    def tread(self, when: str) -> None:
        if when == "before":
            self.steps += 1
        if (self.steps, when) == (self.dies_at, self.when):
            self.dies_at = None
            raise Death

    def mortal(self, part: Any, *names: str) -> None:
        """Let the servers that a part of the product calls count its steps."""
        for name in names:
            setattr(part, name, Doomed(getattr(part, name), self))

    def open_on_record(self) -> bool:
        return any(
            self.store.list_runs(RunFilter(status=status)).items for status in (RunStatus.QUEUED, RunStatus.RUNNING)
        )

    def settle(self) -> None:
        """Live on with whole processes until nothing is open any more."""
        self.housekeeping = keepers(self.services, period_s=2, clock=self.clock, monotonic=lambda: self.now_s)
        for _ in range(60):
            self.live_on(4)
            self.work("worker")
            if not (self.live.open_runs() or self.live.changed(1) or self.open_on_record()):
                break
        self.live_on(2 * LEASE_S + 4)


def accept(world: Mortal) -> None:
    world.mortal(world.runs, "_store", "_live", "_dispatcher")
    world.start("shop", idempotencyKey="k")


def execute(world: Mortal) -> None:
    world.start("half")
    nudge = world.take("worker")
    assert nudge is not None
    executor = world.executor("worker")
    world.mortal(executor, "_store", "_live", "_dispatcher")
    executor.execute(nudge.run_id, "doomed")


def hand_back(world: Mortal) -> None:
    world.start("half")
    nudge = world.take("worker")
    assert nudge is not None
    asked = iter([None, None])
    executor = world.executor("worker")
    executor._leaving = lambda: next(asked, "stopping")
    world.mortal(executor, "_store", "_live", "_dispatcher")
    executor.execute(nudge.run_id, "doomed")


def keep_house(world: Mortal) -> None:
    world.start("shop")
    world.work("worker")
    lost = world.start("half")
    world.claim("worker")
    world.pass_time(LEASE_S + 1, "dispatcher", "worker")
    cancelled = world.start("shop")
    world.runs.cancel(cancelled.run_id)
    doomed = keepers(world.services, period_s=2, clock=world.clock, monotonic=lambda: world.now_s)
    for part in (doomed, doomed._rescue, doomed._recovery):
        world.mortal(part, *(name for name in ("_store", "_live", "_dispatcher") if hasattr(part, name)))
    doomed.round()
    assert world.run(lost).attempt == 2


def bring_back(world: Mortal) -> None:
    world.start("shop")
    world.start("half")
    world.claim("worker")
    world.live_on(2)
    world.live.lose()  # type: ignore[attr-defined]
    doomed = keepers(world.services, period_s=2, clock=world.clock, monotonic=lambda: world.now_s)
    world.mortal(doomed._recovery, "_store", "_live", "_dispatcher")
    doomed._recovery.everything()


def cancel(world: Mortal) -> None:
    run = world.start("shop")
    world.mortal(world.runs, "_store", "_live")
    world.runs.cancel(run.run_id)


WAYS: list[Callable[[Mortal], None]] = [accept, execute, hand_back, keep_house, bring_back, cancel]


def steps_of(way: Callable[[Mortal], None]) -> int:
    world = Mortal()
    way(world)
    return world.steps


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_death_between_any_two_steps_loses_nothing(way: Callable[[Mortal], None], when: str) -> None:
    steps = steps_of(way)
    assert steps >= 2
    for step in range(1, steps + 1):
        world = Mortal()
        world.dies_at, world.when = step, when
        with pytest.raises(Death):
            way(world)
        world.settle()
        for run_id in list(world.store._runs):  # type: ignore[attr-defined]
            is_whole(world, world.runs.get(run_id), f"{way.__name__} died {when} step {step}")
        assert world.store.counter("before") in (0, 1)
        assert world.store.counter("before") == world.store.counter("after")


def is_whole(world: Mortal, run: Run, told: str) -> None:
    events = world.runs.events(run.run_id)
    assert run.ended, told
    assert world.live.get(run.run_id) is None, told
    assert [event.seq for event in events] == list(range(1, len(events) + 1)), told
    ends = [event.type for event in events if event.terminal]
    assert ends == [f"run.{run.status.value}"], told
    assert events[-1].terminal, told
    assert run.status is not RunStatus.FAILED, told

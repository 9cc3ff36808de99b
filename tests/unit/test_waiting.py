"""Why a run waits, and what becomes of cancels by force."""

from __future__ import annotations

import pytest

from app.errors import Conflict
from app.models.run import RUN_SCHEMA, Run, RunStatus
from app.ports import RunFilter
from tests.integration.flows import counting
from tests.memory_world import MemoryWorld


@pytest.fixture
def world() -> MemoryWorld:
    world = MemoryWorld()
    world.deploy("shop", counting("shop"), only=(1, ["worker"]))
    world.beat("worker")
    return world


def reason(world: MemoryWorld, run: Run) -> str | None:
    """What a run waits for, asked more than a second later so that nothing remembered is used."""
    world.now_s += 1.5
    world.beat("dispatcher")
    return world.runs.show(run.run_id).waiting_for


def test_a_run_that_will_be_taken_waits_its_turn(world: MemoryWorld) -> None:
    assert reason(world, world.runs.start("shop", {})) == "waiting_turn"


def test_a_run_behind_a_full_role(world: MemoryWorld) -> None:
    for token in ("t1", "t2"):
        busy = world.runs.start("shop", {})
        world.live.claim(busy.run_id, worker=world.worker("worker"), token=token, ttl_ms=60_000)
    assert reason(world, world.runs.start("shop", {})) == "saturated"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({"draining": True}, "draining"), ({"healthy": False}, "no_workers"), ({"nodes": ()}, "missing_handler")],
)
def test_a_run_whose_workers_cannot_take_it(world: MemoryWorld, changes: dict[str, object], expected: str) -> None:
    run = world.runs.start("shop", {})
    world.beat("worker", **changes)
    assert reason(world, run) == expected


def test_a_run_whose_workers_are_gone(world: MemoryWorld) -> None:
    run = world.runs.start("shop", {})
    world.services.register.leave("worker-1")
    assert reason(world, run) == "no_workers"
    world.housekeeping.round()
    assert [item.waiting_for for item in world.runs.list(RunFilter()).items] == ["no_workers"]


def test_a_run_of_a_newer_rolecall_is_left_alone(world: MemoryWorld) -> None:
    newer = world.runs.start("shop", {}).with_(run_id="newer", schema=RUN_SCHEMA + 1)
    world.store.insert_run(newer)
    world.live.create(newer)
    assert reason(world, newer) == "newer_schema"
    with pytest.raises(Conflict, match="newer Rolecall"):
        world.runs.cancel("newer")


def test_while_nobody_knows_who_is_alive_no_reason_is_given(world: MemoryWorld) -> None:
    run = world.runs.start("shop", {})
    world.now_s += 60
    world.beat("worker")
    assert world.runs.show(run.run_id).waiting_for is None


def test_a_run_that_does_not_wait_has_no_reason(world: MemoryWorld) -> None:
    run = world.runs.start("shop", {})
    world.work()
    assert reason(world, run) is None


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_force_is_refused_where_other_runs_would_end_too(world: MemoryWorld, pool: str) -> None:
    run = world.runs.start("shop", {})
    world.beat("worker", pool=pool)
    world.live.claim(run.run_id, worker=world.worker("worker"), token="t", ttl_ms=60_000)
    with pytest.raises(Conflict, match=f"whose pool '{pool}' cannot end one run by force") as caught:
        world.runs.cancel(run.run_id, force=True)
    assert caught.value.code == "pool_cannot_force"
    assert not world.run(run).cancel_requested


def test_force_is_asked_for_where_the_process_is_the_runs_alone(world: MemoryWorld) -> None:
    run = world.runs.start("shop", {})
    world.beat("worker", pool="prefork")
    world.live.claim(run.run_id, worker=world.worker("worker"), token="t", ttl_ms=60_000)
    assert world.runs.cancel(run.run_id, force=True).cancel_requested
    assert world.live.renew([(run.run_id, "t")], ttl_ms=60_000).forced == {run.run_id}


def test_a_queued_run_is_cancelled_by_force_as_without(world: MemoryWorld) -> None:
    assert world.runs.cancel(world.runs.start("shop", {}).run_id, force=True).status is RunStatus.CANCELLED

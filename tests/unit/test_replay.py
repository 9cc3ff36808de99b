"""Runs that failed for good are listed, and replayed one by one or by a filter."""

from __future__ import annotations

from typing import Any

import pytest

from app.errors import BadRequest
from app.models.run import Run, RunStatus
from app.ports import RunFilter
from app.runs.replay import replay
from tests.integration.flows import counting, document, node
from tests.memory_world import MemoryWorld


@pytest.fixture
def world() -> MemoryWorld:
    world = MemoryWorld()
    world.deploy("broken", document("broken", {"it": node("core/fail", message="no")}), only=(1, ["worker"]))
    world.deploy("sound", counting("sound"), only=(1, ["worker"]))
    world.beat("worker")
    return world


def fail(world: MemoryWorld, count: int, **body: Any) -> list[Run]:
    """Let runs of ``broken`` fail, oldest first."""
    runs = []
    for _ in range(count):
        world.now_s += 0.001
        runs.append(world.runs.start("broken", body))
    world.runs.start("sound", {})
    world.work()
    world.housekeeping.mirror()
    return runs


def asked(world: MemoryWorld, **body: Any) -> dict[str, Any]:
    return replay(world.runs, body).to_wire()


def test_without_being_told_so_it_starts_nothing(world: MemoryWorld) -> None:
    failed = fail(world, 2)
    said = asked(world)
    assert said["dryRun"] is True
    assert [(row["runId"], row["replayedBy"], row["error"]["code"]) for row in said["runs"]] == [
        (failed[1].run_id, None, "PERMANENT"),
        (failed[0].run_id, None, "PERMANENT"),
    ]
    assert world.nudges.sent == []


def test_each_run_is_replayed_once_however_often_it_is_asked_for(world: MemoryWorld) -> None:
    failed = fail(world, 2, input={"n": 1}, meta={"session_id": "s"})
    first = asked(world, dryRun=False, deployment="broken")
    again = asked(world, dryRun=False, deployment="broken")
    assert again == first
    assert len(world.nudges.sent) == 2
    for row, old in zip(first["runs"], reversed(failed), strict=True):
        new = world.runs.get(row["replayedBy"])
        assert (new.retry_of, new.input, new.meta) == (old.run_id, old.input, old.meta)
        assert new.status is RunStatus.QUEUED


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ({"deployment": "broken"}, 3),
        ({"deployment": "sound"}, 0),
        ({"role": "worker", "code": "PERMANENT"}, 3),
        ({"code": "worker_lost"}, 0),
        ({"status": "cancelled"}, 0),
    ],
)
def test_only_what_the_filter_names_is_meant(world: MemoryWorld, where: dict[str, Any], count: int) -> None:
    fail(world, 3)
    assert len(asked(world, **where)["runs"]) == count


def test_the_limit_says_that_there_are_others(world: MemoryWorld) -> None:
    fail(world, 3)
    assert [asked(world, limit=limit)["more"] for limit in (2, 3, 4)] == [True, False, False]
    assert len(asked(world, limit=2)["runs"]) == 2


def test_where_nothing_can_be_started_it_stops_and_says_so(world: MemoryWorld) -> None:
    failed = fail(world, 3)
    world.services.register.leave("worker-1")
    world.beat("dispatcher")
    world.now_s += 2
    said = asked(world, dryRun=False)
    assert (said["runs"], said["more"]) == ([], True)
    assert [(row["runId"], row["code"]) for row in said["refused"]] == [(failed[2].run_id, "no_healthy_variant")]


def test_a_run_whose_deployment_is_gone_keeps_no_other_from_being_replayed(world: MemoryWorld) -> None:
    failed = fail(world, 1)
    world.services.catalog.delete_deployment("broken")
    said = asked(world, dryRun=False)
    assert [(row["runId"], row["code"]) for row in said["refused"]] == [(failed[0].run_id, "deployment_not_found")]
    assert said["more"] is False


def test_a_wrong_filter_is_refused_by_name(world: MemoryWorld) -> None:
    with pytest.raises(BadRequest, match="status"):
        asked(world, status="completed")
    with pytest.raises(BadRequest, match="colour"):
        asked(world, colour="red")


def test_failed_runs_are_listed_with_their_reason(world: MemoryWorld) -> None:
    fail(world, 1)
    [item] = world.runs.list(RunFilter(status=RunStatus.FAILED)).items
    assert item.error is not None
    assert (item.error.code, item.error.message) == ("PERMANENT", "no")

"""Workers, children and data are lost for real, and every run goes on or ends: real processes on a real broker."""

from __future__ import annotations

import os
import signal

import psutil
import pytest
from pytest_celery import CeleryTestSetup

from app.models.run import RunStatus
from app.redis_client import RedisServer
from app.wiring import Services
from tests.integration.conftest import StartWorker, wait_for_workers
from tests.integration.flows import counting, deploy, document, ended, is_running, node, waiting
from tests.servers import wait_until

pytestmark = pytest.mark.integration

ROLES = ["dispatcher", "dispatcher"]


@pytest.fixture(scope="module")
def environment(environment: dict[str, str]) -> dict[str, str]:
    return {**environment, "NODE_MODULES": "tests.integration.wild", "RUN_MAX_ATTEMPTS": "2"}


def wild(name: str) -> bytes:
    return document(name, {"it": node(f"wild/{name}")})


def children(worker: int) -> list[psutil.Process]:
    return psutil.Process(worker).children(recursive=True)


def test_a_killed_workers_run_is_taken_over_where_it_stood(services: Services, start_worker: StartWorker) -> None:
    half = {
        "before": node("core/count", key="before"),
        "checkpoint": {**node("core/log", message="half"), "kind": "checkpoint"},
        "wait": node("core/delay", seconds=3),
        "after": node("core/count", key="after"),
    }
    raw = document("half", half).replace(b'"direct"', b'"checkpoint"')
    deploy(services, "half", raw, only=(1, ["alpha", "beta"]))
    alpha = start_worker("alpha")
    wait_for_workers(services, 1, role="alpha")
    run = services.runs.start("half", {})
    start_worker("beta")
    wait_until(lambda: services.store.counter("before") == 1, seconds=10, what="the first half is done")
    wait_for_workers(services, 1, role="beta")
    alpha.container.kill()
    # How long that takes is for tests/unit/test_rescue.py to say: a machine too busy to beat in time makes gaps here.
    wait_until(lambda: services.runs.get(run.run_id).attempt == 2, seconds=60, what="its lease is broken")
    done = ended(services, run.run_id)
    assert (done.status, done.attempt, done.losses, done.target_role) == (RunStatus.COMPLETED, 2, 1, "beta")
    assert (services.store.counter("before"), services.store.counter("after")) == (1, 1)
    events = services.runs.events(run.run_id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.type for event in events if event.terminal] == ["run.completed"]


def test_a_dead_child_costs_its_run_one_attempt_and_the_worker_nothing(
    services: Services, start_worker: StartWorker
) -> None:
    deploy(services, "waits", waiting(2.0), only=(1, ["worker"]))
    deploy(services, "quick", counting("quick"), only=(1, ["worker"]))
    worker = start_worker("worker", concurrency=1)
    wait_for_workers(services, 1, role="worker")
    run = services.runs.start("waits", {})
    wait_until(lambda: is_running(services, run.run_id), seconds=10, what="it runs")
    [child] = children(worker.container.pid)
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: services.runs.get(run.run_id).losses == 1, seconds=30, what="its parent has given it back")
    [rerouted] = [event for event in services.runs.events(run.run_id) if event.type == "run.rerouted"]
    assert rerouted.data == {"from": "worker", "to": "worker", "reason": "process_died"}
    quick = services.runs.start("quick", {})
    assert ended(services, quick.run_id, seconds=10).status is RunStatus.COMPLETED
    done = ended(services, run.run_id)
    assert (done.status, done.attempt, done.losses) == (RunStatus.COMPLETED, 2, 1)


def test_flows_that_kill_their_process_fail_and_take_no_worker_down(
    services: Services, start_worker: StartWorker
) -> None:
    deploy(services, "suicide", wild("suicide"), only=(1, ["worker"]))
    deploy(services, "greedy", wild("greedy"), only=(1, ["worker"]))
    worker = start_worker("worker", concurrency=1)
    wait_for_workers(services, 1, role="worker")
    killed = ended(services, services.runs.start("suicide", {}).run_id, seconds=30)
    assert killed.error is not None
    assert (killed.status, killed.error.code, killed.losses) == (RunStatus.FAILED, "worker_lost", 2)
    greedy = ended(services, services.runs.start("greedy", {}).run_id)
    assert greedy.error is not None
    assert (greedy.status, greedy.losses, greedy.error.node) == (RunStatus.FAILED, 0, "it")
    assert worker.container.status == "running"


def test_a_cancel_by_force_ends_a_handler_that_does_not_listen(services: Services, start_worker: StartWorker) -> None:
    deploy(services, "stubborn", wild("stubborn"), only=(1, ["worker"]))
    deploy(services, "neighbour", waiting(6.0), only=(1, ["worker"]))
    start_worker("worker", concurrency=2)
    wait_for_workers(services, 1, role="worker")
    neighbour, run = services.runs.start("neighbour", {}), services.runs.start("stubborn", {})
    for each in (neighbour, run):
        wait_until(lambda run_id=each.run_id: is_running(services, run_id), seconds=10, what="both run")
    services.runs.cancel(run.run_id, force=True)
    assert ended(services, run.run_id, seconds=15).status is RunStatus.CANCELLED
    assert ended(services, neighbour.run_id).losses == 0


def test_runs_are_brought_back_after_everything_in_redis_was_lost(
    services: Services, celery_setup: CeleryTestSetup, environment: dict[str, str], start_worker: StartWorker
) -> None:
    deploy(services, "lost", counting("lost"), only=(1, ["late"]))
    deploy(services, "keeper", counting("keeper"), only=(1, ["keeper"]))
    start_worker("late")
    wait_for_workers(services, 1, role="late")
    [late] = [one.heartbeat for one in services.register.instances() if one.heartbeat.role == "late"]
    assert late.pid is not None
    os.kill(late.pid, signal.SIGSTOP)
    runs = [services.runs.start("lost", {}) for _ in range(5)]
    redis = RedisServer(environment["REDIS_URL"], socket_timeout_s=5)
    with redis.errors():
        redis.client.flushall()
    redis.close()
    os.kill(late.pid, signal.SIGCONT)
    for run in runs:
        done = ended(services, run.run_id, seconds=30)
        assert (done.status, done.epoch) == (RunStatus.COMPLETED, 1)
    assert services.store.counter("lost") == 5


def test_a_run_whose_message_was_lost_is_executed_all_the_same(
    services: Services, environment: dict[str, str], start_worker: StartWorker
) -> None:
    deploy(services, "astray", counting("astray"), only=(1, ["far"]))
    worker = start_worker("far")
    wait_for_workers(services, 1, role="far")
    os.kill(worker.container.pid, signal.SIGSTOP)
    run = services.runs.start("astray", {})
    redis = RedisServer(environment["REDIS_URL"], socket_timeout_s=5)
    with redis.errors():
        redis.client.delete("far", *(f"far\x06\x16{step}" for step in (3, 6, 9)))
    redis.close()
    os.kill(worker.container.pid, signal.SIGCONT)
    assert ended(services, run.run_id).status is RunStatus.COMPLETED
    assert services.store.counter("astray") == 1

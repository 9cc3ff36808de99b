"""Workers, children and data are lost for real, and every run goes on or ends: real processes on a real broker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from app.errors import Unavailable
from app.models.run import RunStatus
from app.redis_client import RedisServer
from app.wiring import Services
from tests.integration.conftest import StartWorker, wait_for_workers
from tests.integration.flows import counting, deploy, document, ended, is_running, node, waiting
from tests.servers import wait_until

pytestmark = pytest.mark.integration

ROLES = ["dispatcher", "dispatcher", "worker"]


@pytest.fixture(scope="module")
def environment(environment: dict[str, str]) -> dict[str, str]:
    return {**environment, "NODE_MODULES": "tests.integration.wild", "RUN_MAX_ATTEMPTS": "2"}


def wild(name: str) -> bytes:
    return document(name, {"it": node(f"wild/{name}")})


def can_start(services: Services, deployment: str) -> bool:
    try:
        services.runs.resolve(deployment, {})
    except Unavailable:
        return False
    return True


def main_process(services: Services) -> int:
    """The pid of the shared worker's main process."""
    [pid] = [one.heartbeat.pid for one in services.register.instances() if one.heartbeat.role == "worker"]
    assert pid is not None
    return pid


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Freeze a worker's main process, which takes the messages."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def raw(environment: dict[str, str]) -> Iterator[RedisServer]:
    server = RedisServer(environment["REDIS_URL"], socket_timeout_s=5)
    try:
        with server.errors():
            yield server
    finally:
        server.close()


def test_a_killed_workers_run_is_taken_over_where_it_stood(services: Services, start_worker: StartWorker) -> None:
    half = {
        "before": node("core/count", key="before"),
        "checkpoint": {**node("core/log", message="half"), "kind": "checkpoint"},
        "wait": node("core/delay", seconds=3),
        "after": node("core/count", key="after"),
    }
    raw = document("half", half).replace(b'"direct"', b'"checkpoint"')
    deploy(services, "half", raw, only=(1, ["alpha", "beta"]))
    workers = {role: start_worker(role) for role in ("alpha", "beta")}
    for role in workers:
        wait_for_workers(services, 1, role=role)
    run = services.runs.start("half", {})
    wait_until(lambda: services.store.counter("before") == 1, seconds=10, what="the first half is done")
    lost = services.runs.get(run.run_id).target_role
    workers[lost].container.kill()
    # How long that takes is for tests/unit/test_rescue.py to say: a machine too busy to beat in time makes gaps here.
    wait_until(lambda: services.runs.get(run.run_id).attempt == 2, seconds=60, what="its lease is broken")
    [other] = workers.keys() - {lost}
    done = ended(services, run.run_id)
    assert (done.status, done.attempt, done.losses, done.target_role) == (RunStatus.COMPLETED, 2, 1, other)
    assert (services.store.counter("before"), services.store.counter("after")) == (1, 1)
    events = services.runs.events(run.run_id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.type for event in events if event.terminal] == ["run.completed"]


def test_a_dead_child_costs_its_run_one_attempt_and_the_worker_nothing(services: Services) -> None:
    deploy(services, "waits", waiting(2.0), only=(1, ["worker"]))
    deploy(services, "quick", counting("quick"), only=(1, ["worker"]))
    run = services.runs.start("waits", {})
    wait_until(lambda: is_running(services, run.run_id), seconds=10, what="it runs")
    for child in psutil.Process(main_process(services)).children(recursive=True):
        os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: services.runs.get(run.run_id).losses == 1, seconds=30, what="its parent has given it back")
    [rerouted] = [event for event in services.runs.events(run.run_id) if event.type == "run.rerouted"]
    assert rerouted.data == {"from": "worker", "to": "worker", "reason": "process_died"}
    wait_until(lambda: can_start(services, "quick"), seconds=20, what="its pool has processes again")
    quick = services.runs.start("quick", {})
    assert ended(services, quick.run_id, seconds=10).status is RunStatus.COMPLETED
    done = ended(services, run.run_id)
    assert (done.status, done.attempt, done.losses) == (RunStatus.COMPLETED, 2, 1)


def test_flows_that_kill_their_process_fail_and_take_no_worker_down(services: Services) -> None:
    deploy(services, "suicide", wild("suicide"), only=(1, ["worker"]))
    deploy(services, "greedy", wild("greedy"), only=(1, ["worker"]))
    before = main_process(services)
    killed = ended(services, services.runs.start("suicide", {}).run_id, seconds=30)
    assert killed.error is not None
    assert (killed.status, killed.error.code, killed.losses) == (RunStatus.FAILED, "worker_lost", 2)
    wait_until(lambda: can_start(services, "greedy"), seconds=20, what="its pool has processes again")
    greedy = ended(services, services.runs.start("greedy", {}).run_id)
    assert greedy.error is not None
    assert (greedy.status, greedy.losses, greedy.error.node) == (RunStatus.FAILED, 0, "it")
    assert main_process(services) == before


def test_a_cancel_by_force_ends_a_handler_that_does_not_listen(services: Services) -> None:
    deploy(services, "stubborn", wild("stubborn"), only=(1, ["worker"]))
    deploy(services, "neighbour", waiting(6.0), only=(1, ["worker"]))
    wait_until(lambda: can_start(services, "stubborn"), seconds=20, what="its pool has processes again")
    neighbour, run = services.runs.start("neighbour", {}), services.runs.start("stubborn", {})
    for each in (neighbour, run):
        wait_until(lambda run_id=each.run_id: is_running(services, run_id), seconds=10, what="both run")
    services.runs.cancel(run.run_id, force=True)
    assert ended(services, run.run_id, seconds=15).status is RunStatus.CANCELLED
    assert ended(services, neighbour.run_id).losses == 0


def test_a_run_whose_message_was_lost_is_executed_all_the_same(services: Services, environment: dict[str, str]) -> None:
    deploy(services, "astray", counting("astray"), only=(1, ["worker"]))
    wait_until(lambda: can_start(services, "astray"), seconds=20, what="its pool has processes again")
    with frozen(main_process(services)), raw(environment) as redis:
        run = services.runs.start("astray", {})
        redis.client.delete("worker", *(f"worker\x06\x16{step}" for step in (3, 6, 9)))
    assert ended(services, run.run_id).status is RunStatus.COMPLETED
    assert services.store.counter("astray") == 1


def test_runs_are_brought_back_after_everything_in_redis_was_lost(
    services: Services, environment: dict[str, str]
) -> None:
    deploy(services, "lost", counting("lost"), only=(1, ["worker"]))
    wait_until(lambda: can_start(services, "lost"), seconds=20, what="the worker is there")
    with frozen(main_process(services)), raw(environment) as redis:
        runs = [services.runs.start("lost", {}) for _ in range(5)]
        redis.client.flushall()
    for run in runs:
        done = ended(services, run.run_id, seconds=30)
        assert (done.status, done.epoch) == (RunStatus.COMPLETED, 1)
    assert services.store.counter("lost") == 5

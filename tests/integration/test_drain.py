"""Draining real workers: they stop taking messages, give back what they execute, stay healthy, and take up again."""

from __future__ import annotations

import time

import pytest

from app.models.heartbeat import Heartbeat
from app.models.run import RunStatus
from app.wiring import Services
from tests.integration.conftest import INTERVAL_S, StartWorker, wait_for_workers
from tests.integration.flows import deploy, document, ended, is_running, node, waiting
from tests.servers import wait_until

pytestmark = pytest.mark.integration

ROLES = ["dispatcher"]

# One worker of each pool, all of them beside each other: it is the starts that take time.
POOLS = {"drained-prefork": "prefork", "drained-threads": "threads"}


def heartbeats(services: Services) -> list[Heartbeat]:
    beats = [instance.heartbeat for instance in services.register.instances()]
    return [beat for beat in beats if beat.role in POOLS]


def all_drain(services: Services, draining: bool) -> bool:
    beats = heartbeats(services)
    return len(beats) == len(POOLS) and all(beat.healthy and beat.draining is draining for beat in beats)


def wait_for_drain(services: Services, draining: bool = True) -> None:
    what = f"every worker is healthy and {'drains' if draining else 'drains no more'}"
    wait_until(lambda: all_drain(services, draining), seconds=20, what=what)


def test_drained_workers_take_nothing_even_after_a_restart_and_lose_nothing(
    services: Services, start_worker: StartWorker
) -> None:
    workers = []
    for role, pool in POOLS.items():
        deploy(services, role, waiting(*[0.2] * 50), only=(1, [role]))
        workers.append(start_worker(role, pool=pool))
    for role in POOLS:
        wait_for_workers(services, 1, role=role)
    runs = {role: services.runs.start(role, {}).run_id for role in POOLS}
    wait_until(lambda: all(is_running(services, run) for run in runs.values()), seconds=10, what="all run")
    nodes = [beat.node for beat in heartbeats(services)]

    for name in nodes:
        services.register.drain("node", name, by="a test")
    wait_for_drain(services)
    wait_until(
        lambda: not any(is_running(services, run) for run in runs.values()), seconds=5, what="all are handed back"
    )
    for role, run_id in runs.items():
        run = services.runs.get(run_id)
        assert (run.status, run.attempt, run.losses) == (RunStatus.QUEUED, 2, 0)
        assert services.runs.events(run_id)[-1].data == {"from": role, "to": role, "reason": "draining"}
    first = runs[next(iter(runs))]
    wait_until(lambda: services.runs.show(first).waiting_for == "draining", seconds=5, what="a run says why it waits")

    for worker in workers:
        worker.container.terminate()
    for worker in workers:
        worker.container.wait(10)
    for role, pool in POOLS.items():
        start_worker(role, pool=pool)
    wait_for_drain(services)
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        assert all_drain(services, True)
        assert min(services.dispatcher.depth(list(POOLS)).values()) > 0, "somebody has taken a message"
        time.sleep(INTERVAL_S / 2)
    for run_id in runs.values():
        assert [event.type for event in services.runs.events(run_id)].count("run.started") == 1

    for name in nodes:
        services.register.undrain("node", name)
    wait_for_drain(services, draining=False)
    wait_until(lambda: all(is_running(services, run) for run in runs.values()), seconds=10, what="all run again")
    for run_id in runs.values():
        services.runs.cancel(run_id)
    _burst(services)


def _burst(services: Services) -> None:
    """No run is lost while whole roles drain and take up again in the middle of many short runs."""
    steps = {"count": node("core/count", key="burst"), "wait": node("core/delay", seconds=0.05)}
    for role in POOLS:
        deploy(services, f"burst-{role}", document("burst", steps), only=(1, [role]))
    runs = [services.runs.start(f"burst-{role}", {}).run_id for role in POOLS for _ in range(8)]
    for role in POOLS:
        services.register.drain("role", role, by="a test")
    wait_for_drain(services)
    for role in POOLS:
        services.register.undrain("role", role)
    wait_for_drain(services, draining=False)
    done = [ended(services, run) for run in runs]
    assert {(run.status, run.losses) for run in done} == {(RunStatus.COMPLETED, 0)}

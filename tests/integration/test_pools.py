"""Workers on every pool with every slot busy, how they stop, and workers that are refused at start."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_celery import CeleryTestWorker

from app.models.run import RunStatus
from app.wiring import Services
from tests.integration.conftest import INTERVAL_S, STOP_S, TTL_S, StartWorker, starting, wait_for_workers
from tests.integration.flows import deploy, document, is_running, node
from tests.servers import wait_until

pytestmark = pytest.mark.integration

ROLES = ["dispatcher"]
SLOTS = {"prefork": 2, "threads": 2, "solo": 1}

# A handler that listens to nobody: `core/delay` would give its run back as soon as its worker stops.
STUBBORN = document("stubborn", {"it": node("wild/stubborn")})

Busy = dict[str, tuple[CeleryTestWorker, list[str]]]


@pytest.fixture(scope="module")
def environment(environment: dict[str, str]) -> dict[str, str]:
    return {**environment, "NODE_MODULES": "tests.integration.wild"}


@pytest.fixture(scope="module")
def busy(services: Services, environment: dict[str, str], folder: Path) -> Iterator[Busy]:
    """One worker of each pool, each with as many runs as it has slots, all in the middle of a long node."""
    with starting(environment, folder) as start:
        workers = {}
        for pool, count in SLOTS.items():
            deploy(services, pool, STUBBORN, only=(1, [f"busy-{pool}"]))
            workers[pool] = start(f"busy-{pool}", pool=pool, concurrency=count)
        for pool in SLOTS:
            wait_for_workers(services, 1, role=f"busy-{pool}")
        runs = {pool: [services.runs.start(pool, {}).run_id for _ in range(count)] for pool, count in SLOTS.items()}
        wait_until(
            lambda: all(is_running(services, run) for ids in runs.values() for run in ids),
            seconds=10,
            what="every slot is busy",
        )
        yield {pool: (workers[pool], runs[pool]) for pool in SLOTS}


def test_workers_with_every_slot_busy_stay_healthy_on_every_pool(services: Services, busy: Busy) -> None:
    until, seen = time.monotonic() + 1.5 * TTL_S, set()
    while time.monotonic() < until:
        beats = {one.heartbeat.role: one.heartbeat for one in services.register.instances()}
        for pool in busy:
            beat = beats[f"busy-{pool}"]
            assert beat.healthy, beat.checks
            seen.add((pool, beat.pool.removesuffix("s"), beat.active, beat.concurrency))
        time.sleep(INTERVAL_S / 4)
    assert {(pool, pool.removesuffix("s"), count, count) for pool, count in SLOTS.items()} <= seen
    assert all(is_running(services, run) for _, runs in busy.values() for run in runs)


def test_what_is_in_the_middle_of_a_node_when_its_worker_stops_is_handed_back(services: Services, busy: Busy) -> None:
    """At the deadline of a warm stop, or at once when the stop is cold. Nobody waits for the node."""
    ways = {"prefork": signal.SIGTERM, "threads": signal.SIGQUIT, "solo": signal.SIGTERM}
    asked = time.monotonic()
    for pool, (worker, _) in busy.items():
        os.kill(worker.container.pid, ways[pool])
    for worker, _ in busy.values():
        worker.container.wait(STOP_S + 5)
    assert time.monotonic() - asked >= STOP_S, "a warm stop has time"
    for pool, (worker, runs) in busy.items():
        for run in map(services.runs.get, runs):
            assert (run.status, run.attempt, run.losses) == (RunStatus.QUEUED, 2, 0), (pool, worker.logs())
            assert services.runs.events(run.run_id)[-1].type == "run.rerouted"
    left = {instance.heartbeat.role for instance in services.register.instances()}
    assert not left & {f"busy-{pool}" for pool in busy}, "they said goodbye"


@pytest.mark.parametrize(
    ("role", "options", "said"),
    [
        ("GPU Worker", (), "is not a role: it must be 1 to 64 of a-z"),
        ("celeryd", (), "is reserved"),
        ("worker", ("-Q", "worker,celery"), "-Q worker,celery is refused"),
    ],
)
def test_a_worker_that_would_consume_anything_else_is_refused_with_the_rule(
    role: str, options: tuple[str, ...], said: str, start_worker: StartWorker
) -> None:
    worker = start_worker(role, *options)
    assert worker.container.wait(20) == 1
    assert said in worker.logs()
    assert "Traceback" not in worker.logs()

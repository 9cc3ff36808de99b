"""Workers on every pool, and workers that are refused at start."""

from __future__ import annotations

import time

import pytest

from app.wiring import Services
from tests.integration.conftest import INTERVAL_S, TTL_S, StartWorker, wait_for_workers
from tests.integration.flows import deploy, is_running, waiting
from tests.servers import wait_until

pytestmark = pytest.mark.integration

ROLES = ["dispatcher"]


def test_workers_with_every_slot_busy_stay_healthy_on_every_pool(services: Services, start_worker: StartWorker) -> None:
    """Beside each other, so that their starts and their waits are."""
    slots = {"prefork": 2, "threads": 2, "solo": 1}
    runs: list[str] = []
    for pool, count in slots.items():
        deploy(services, pool, waiting(2.5 * TTL_S), only=(1, [f"busy-{pool}"]))
        start_worker(f"busy-{pool}", pool=pool, concurrency=count)
    for pool in slots:
        wait_for_workers(services, 1, role=f"busy-{pool}")
    for pool, count in slots.items():
        runs += [services.runs.start(pool, {}).run_id for _ in range(count)]
    wait_until(lambda: all(is_running(services, run) for run in runs), seconds=10, what="every slot is busy")
    until, seen = time.monotonic() + 1.5 * TTL_S, set()
    while time.monotonic() < until:
        beats = {one.heartbeat.role: one.heartbeat for one in services.register.instances()}
        for pool in slots:
            beat = beats[f"busy-{pool}"]
            assert beat.healthy, beat.checks
            seen.add((pool, beat.pool.removesuffix("s"), beat.active, beat.concurrency))
        time.sleep(INTERVAL_S / 4)
    assert {(pool, pool.removesuffix("s"), count, count) for pool, count in slots.items()} <= seen
    assert all(is_running(services, run) for run in runs)


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

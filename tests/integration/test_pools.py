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


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_worker_with_every_slot_busy_stays_healthy(pool: str, services: Services, start_worker: StartWorker) -> None:
    role = f"busy-{pool}"
    slots = 1 if pool == "solo" else 2
    deploy(services, role, waiting(2.5 * TTL_S), only=(1, [role]))
    start_worker(role, pool=pool, concurrency=slots)
    wait_for_workers(services, 1, role=role)
    runs = [services.runs.start(role, {}).run_id for _ in range(slots)]
    wait_until(lambda: all(is_running(services, run) for run in runs), seconds=10, what="every slot is busy")
    until, seen = time.monotonic() + 1.5 * TTL_S, set()
    while time.monotonic() < until:
        [beat] = [i.heartbeat for i in services.register.instances() if i.heartbeat.role == role]
        assert beat.healthy, beat.checks
        seen.add((beat.active, beat.pool, beat.concurrency))
        time.sleep(INTERVAL_S / 4)
    assert (slots, pool, slots) in {(active, name.replace("thread", "threads"), n) for active, name, n in seen} | seen
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

"""A look at a running Celery worker from inside: what it does, and whether it does what it should."""

from __future__ import annotations

import time
from typing import Any

from celery.worker import state

from app.clock import system_clock
from app.health import HealthCheck
from app.pulse import Activity
from workers.process import WorkerProcess

LAG_LIMIT_S = 5.0
"""A worker's loop that has not come round for this long takes no messages: the worker is unhealthy."""


class Observer:
    """Reads a worker's state from the heartbeat's thread while its loop runs; each value is a single read."""

    def __init__(self, controller: Any, process: WorkerProcess) -> None:
        self._controller = controller
        self._process = process
        self._looped_at = time.monotonic()
        self._received_ms: int | None = None

    def looped(self) -> None:
        """The worker's loop came round; called by it once a second."""
        self._looped_at = time.monotonic()
        # A prefork pool looks for dead children every five seconds; a run must not wait so long for its next attempt.
        maintain = getattr(getattr(self._controller.pool, "_pool", None), "maintain_pool", None)
        if maintain is not None:
            maintain()

    def received(self) -> None:
        """A message was taken from the queue."""
        self._received_ms = system_clock()

    def activity(self) -> Activity:
        """Return what the worker is doing now."""
        controller = self._controller
        pool_class = getattr(controller, "pool_cls", None)
        return Activity(
            executes=self._process.settings.executes,
            pool="" if pool_class is None else pool_class.__module__.rsplit(".", 1)[-1],
            concurrency=_slots(controller),
            active=len(state.active_requests),
            reserved=len(state.reserved_requests),
            last_consumed_ms=self._received_ms,
            draining=self._process.leaving() is not None,
        )

    def leases(self) -> list[tuple[str, str]]:
        """Return run id and lease token of every run that the pool has begun."""
        found = []
        for request in list(state.active_requests):
            lease = getattr(request, "lease", None)
            if lease is not None:
                found.append(lease)
        return found

    def children(self) -> list[int]:
        """Return the process ids of the pool's children; threads and the worker's own process are none."""
        return [child.pid for child in self._child_processes() if child.pid is not None]

    def checks(self) -> list[HealthCheck]:
        """Return the checks of the process's own parts."""
        return [
            HealthCheck("consumer", self._consumer),
            HealthCheck("pool", self._pool),
            HealthCheck("loop", self._loop),
        ]

    def _consumer(self) -> str:
        role = self._process.settings.service_role
        if self._process.stopping.is_set():
            return "stopping"
        consumer = getattr(self._controller, "consumer", None)
        tasks = getattr(consumer, "task_consumer", None)
        if tasks is None:
            raise RuntimeError("not connected to the broker")
        if not consumer.connection.connected:
            raise RuntimeError("the connection to the broker is closed")
        if self._process.draining.is_set():
            return "draining"
        if not tasks.consuming_from(role):
            raise RuntimeError(f"does not consume the queue {role!r}")
        return f"consumes {role!r}"

    def _pool(self) -> str:
        pool = getattr(self._controller, "pool", None)
        processes = self._child_processes()
        if processes:
            alive = sum(1 for process in processes if process.is_alive())
            if alive == 0:
                raise RuntimeError("no process of the pool is alive")
            return f"{alive} of {len(processes)} processes alive"
        if pool is None:
            raise RuntimeError("there is no pool")
        return type(pool).__module__.rsplit(".", 1)[-1]

    def _child_processes(self) -> list[Any]:
        processes = getattr(getattr(getattr(self._controller, "pool", None), "_pool", None), "_pool", None)
        if isinstance(processes, list) and processes and hasattr(processes[0], "is_alive"):
            return list(processes)
        return []

    def _loop(self) -> str:
        lag_s = time.monotonic() - self._looped_at
        if lag_s > LAG_LIMIT_S and not self._blocks_by_design():
            raise RuntimeError(f"the worker's loop has not come round for {lag_s:.1f} s")
        return f"{max(0.0, lag_s - 1):.1f} s behind" if lag_s > 2 else ""

    def _blocks_by_design(self) -> bool:
        # A solo worker executes in its loop: it stands still for as long as a run takes.
        return self.activity().pool == "solo" and self.activity().active > 0


def _slots(controller: Any) -> int:
    limit = getattr(controller, "max_concurrency", None) or getattr(controller, "concurrency", 0)
    pool = getattr(controller, "pool", None)
    return int(getattr(pool, "num_processes", None) or limit or 0)

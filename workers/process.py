"""What one worker is, in its main process and in the children of its pool."""

from __future__ import annotations

import logging
import mmap
import os
import signal
from collections.abc import Callable
from threading import Thread
from typing import Generic, TypeVar

from app import wiring
from app.celery import RolecallCelery
from app.config import Settings
from app.errors import ServerUnavailable
from app.health import HealthCheck
from app.models.heartbeat import Heartbeat
from app.models.run import WorkerRef
from app.nodes.registry import load_handlers
from app.ports import Leaving
from app.pulse import Activity, Pulse
from app.runs import Executor
from app.runs.rescue import give_back, lose
from app.wiring import Services

logger = logging.getLogger(__name__)

T = TypeVar("T")


class SharedFlag:
    """A flag that a process raises and lowers for itself and for the children that it forked before or after."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1)

    def set(self) -> None:
        self._memory[0] = 1

    def clear(self) -> None:
        self._memory[0] = 0

    def is_set(self) -> bool:
        return self._memory[0] == 1


class PerProcess(Generic[T]):
    """A value that each process makes for itself when it first asks: what a fork must not share.

    The parent's value stays referenced in a child, so that the child does not close what is not its own.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: dict[int, T] = {}

    def get(self) -> T:
        pid = os.getpid()
        value = self._values.get(pid)
        # Without a lock, which a fork could copy in its held state: of two threads' values one is kept, unused.
        return self._values.setdefault(pid, self._make()) if value is None else value


class WorkerProcess:
    """A worker: who it is, what it needs, what it does. Made before the pool forks."""

    def __init__(self, celery: RolecallCelery, settings: Settings, *, node: str) -> None:
        self.settings = settings
        self.identity = who = wiring.identity(role=settings.service_role, node=node)
        self.stopping, self.draining = SharedFlag(), SharedFlag()
        # Loaded before the fork: children share the pages, and a faulty module stops the worker at once.
        handlers = load_handlers(settings.node_module_list)
        self._services = PerProcess(lambda: wiring.build(settings, celery=celery, handlers=handlers))
        worker = WorkerRef(who.instance_id, who.node, who.role)
        self._executor = PerProcess(
            lambda: wiring.executor(self.services, worker, leaving=self.leaving, die=self._die())
        )
        self._pulse: Pulse | None = None

    @property
    def services(self) -> Services:
        """The services of the process that asks."""
        return self._services.get()

    @property
    def executor(self) -> Executor:
        """The executor of the process that asks."""
        return self._executor.get()

    def leaving(self) -> Leaving | None:
        """Return why this worker takes and keeps no runs, if it does not."""
        if self.stopping.is_set():
            return "stopping"
        return "draining" if self.draining.is_set() else None

    def _die(self) -> Callable[[], None] | None:
        """Return what ends the process that asks, if it is a child of the pool and has one run at a time."""
        pid = os.getpid()
        return None if pid == self.identity.pid else lambda: os.kill(pid, signal.SIGKILL)

    def child_lost(self, run_id: str, token: str) -> None:
        """A child of the pool is gone in the middle of a run: let the run go on elsewhere at once.

        Called by the worker's loop, which must not wait for Redis.
        """

        def lost() -> None:
            most = self.settings.run_max_attempts
            lose(self.services.live, run_id, token, reason="process_died", max_losses=most)

        Thread(target=lost, name=f"lost-{run_id}", daemon=True).start()

    def give_back(self, leases: list[tuple[str, str]]) -> None:
        """Hand back runs that the pool executes, for their processes or threads are about to be ended."""
        elsewhere = wiring.next_role(self.services).now
        live, dispatcher = self.services.live, self.services.dispatcher
        for run_id, token in leases:
            try:
                given = give_back(live, dispatcher, run_id, token, reason="stopping", elsewhere=elsewhere)
            except ServerUnavailable as error:
                logger.warning("runs could not be handed back and wait for their leases to expire: %s", error)
                return
            if given:
                logger.warning("run %s is handed back in the middle of a node: this worker's time is over", run_id)

    def make_pulse(
        self,
        activity: Callable[[], Activity],
        checks: list[HealthCheck],
        leases: Callable[[], list[tuple[str, str]]],
        told: Callable[[bool], bool],
    ) -> Pulse:
        """Make the pulse of the main process."""
        self._pulse = wiring.pulse(
            self.services, self.identity, activity=activity, checks=checks, leases=leases, told=told
        )
        return self._pulse

    def heartbeat(self) -> Heartbeat:
        """What the main process says of itself now."""
        if self._pulse is None:
            raise RuntimeError("this worker has not started yet")
        return self._pulse.compose()

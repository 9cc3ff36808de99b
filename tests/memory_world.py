"""A whole Rolecall in memory with a clock moved by hand: callers, workers and housekeeping inside one test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.config import load_settings
from app.dispatch.memory import MemoryDispatcher
from app.models.heartbeat import Heartbeat
from app.models.run import Run, WorkerRef
from app.ports import Leaving, Nudge
from app.runs import Executor
from app.runs.execution import Limits
from app.runs.flusher import Flusher
from app.wiring import Services, build_memory, keepers
from tests.integration.flows import deploy


class MemoryWorld:
    """Time stands still unless a test moves it: ``world.now_s += 5``."""

    def __init__(self, **settings: Any) -> None:
        self.now_s = 1_000_000.0
        self.services: Services = build_memory(
            load_settings({}, **settings), clock=self.clock, monotonic=lambda: self.now_s
        )
        assert isinstance(self.services.dispatcher, MemoryDispatcher)
        self.nudges = self.services.dispatcher
        self.runs, self.live, self.store = self.services.runs, self.services.live, self.services.store
        self.housekeeping = keepers(self.services, period_s=2, clock=self.clock, monotonic=lambda: self.now_s)

    def clock(self) -> int:
        return int(self.now_s * 1000)

    def beat(self, *roles: str, **changes: Any) -> None:
        """Let one worker of each role announce itself."""
        for role in roles:
            fields: dict[str, Any] = {
                "instance_id": f"{role}-1",
                "hostname": "host",
                "role": role,
                "version": "1",
                "started_at": "2026-11-30T21:40:00.000Z",
                "healthy": True,
                "pid": 1,
                "node": f"{role}@host",
                "executes": role != "dispatcher",
                "concurrency": 2,
                "nodes": tuple(sorted(self.services.handlers.refs)),
            }
            self.services.register.beat(Heartbeat.model_validate(fields | changes))

    def pass_time(self, seconds: float, *alive: str) -> None:
        """Move the clock while workers of the ``alive`` roles go on beating."""
        until = self.now_s + seconds
        while self.now_s < until:
            self.now_s = min(until, self.now_s + 5)
            self.beat(*alive)

    def deploy(self, name: str, raw: bytes, **weights_and_roles: tuple[int, Sequence[str]]) -> None:
        deploy(self.services, name, raw, **{label: (w, list(r)) for label, (w, r) in weights_and_roles.items()})

    def worker(self, role: str) -> WorkerRef:
        """The worker of a role that :meth:`beat` announces."""
        return WorkerRef(f"{role}-1", f"{role}@host", role)

    def executor(self, role: str = "worker", *, leaving: Leaving | None = None, **changes: Any) -> Executor:
        """A worker's executor."""
        parts: dict[str, Any] = {
            "store": self.store,
            "live": self.live,
            "dispatcher": self.nudges,
            "catalog": self.services.catalog,
            "handlers": self.services.handlers,
            "worker": self.worker(role),
            "flusher": QuietFlusher(monotonic=lambda: self.now_s, lease_ttl_s=30),
            "limits": Limits(lease_ttl_s=30, run_timeout_s=3600, max_events=1000, output_max_bytes=1_000_000),
            "monotonic": lambda: self.now_s,
            "random": lambda: 0.5,
            "leaving": lambda: leaving,
        }
        return Executor(**(parts | changes))

    def take(self, role: str) -> Nudge | None:
        """Take the oldest nudge of a role, as its queue would give it to a worker."""
        for nudge in self.nudges.sent:
            if nudge.target_role == role:
                self.nudges.sent.remove(nudge)
                return nudge
        return None

    def work(self, role: str = "worker", **changes: Any) -> list[str]:
        """Let a worker of a role do everything that is queued for it; return what became of each nudge."""
        executor, words = self.executor(role, **changes), []
        while (nudge := self.take(role)) is not None:
            words.append(executor.execute(nudge.run_id, f"token-{len(words)}-{self.now_s}-{nudge.run_id}"))
        return words

    def run(self, run: Run) -> Run:
        """Return a run as it is now."""
        return self.runs.get(run.run_id)

    def types(self, run: Run) -> list[str]:
        """Return the types of a run's events so far."""
        return [event.type for event in self.runs.events(run.run_id)]


class QuietFlusher(Flusher):
    """A flusher without its thread: everything leaves with the end of the run."""

    def add(self, attempt: Any) -> None:
        """Nothing to look after."""

    def poke(self) -> None:
        """Nobody to wake."""

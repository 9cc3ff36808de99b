"""What the tests of the register share: heartbeats to send, and registers whose time a test can move."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Protocol

import redis

from app.models.heartbeat import Heartbeat
from app.ports import Register
from app.redis_client import connect
from app.register.memory import MemoryRegister
from app.register.redis import RedisRegister

INTERVAL_MS, TTL_MS, LEASE_TTL_MS = 10_000, 30_000, 20_000
SILENCE_MS = TTL_MS // 2
UNKNOWN_MS = INTERVAL_MS + 1000
TIMES = {"interval_ms": INTERVAL_MS, "ttl_ms": TTL_MS, "lease_ttl_ms": LEASE_TTL_MS}

MARGIN_MS = 500
"""How far from a threshold a test stays: a real server's clock runs on while the test does."""


def heartbeat(ident: str = "a", role: str = "worker", **changes: Any) -> Heartbeat:
    """Return the heartbeat of a healthy worker with four slots."""
    fields = {
        "instance_id": ident,
        "hostname": "host",
        "role": role,
        "version": "1",
        "started_at": "2026-11-30T21:40:00Z",
        "healthy": True,
        "pid": 1,
        "node": f"{role}@host",
        "executes": True,
        "concurrency": 4,
        "nodes": ("core/log",),
    }
    return Heartbeat.model_validate(fields | changes)


class Bench(Protocol):
    """A register under test."""

    register: Register

    def advance(self, ms: int) -> None:
        """Let time pass on the server."""


class MemoryBench:
    def __init__(self) -> None:
        self._now = 1_764_538_800_000
        self.register = MemoryRegister(lambda: self._now, **TIMES)

    def advance(self, ms: int) -> None:
        self._now += ms


class RedisBench:
    """Time passes on a real server by making everything that it remembers older, its clock being its own."""

    def __init__(self, url: str, prefix: str) -> None:
        self.url, self.prefix = url, prefix
        self.client: redis.Redis = connect(url, socket_timeout_s=5)
        self.register = self.process()
        self.shifted_ms = 0

    def process(self) -> RedisRegister:
        """Return the register as another process has it."""
        return RedisRegister(self.url, key_prefix=self.prefix, socket_timeout_s=5, **TIMES)

    def advance(self, ms: int) -> None:
        self.shifted_ms += ms
        seen, pulse = f"{self.prefix}register:seen", f"{self.prefix}register:pulse"
        with self.client.pipeline() as batch:
            for ident in self.client.zrange(seen, 0, -1):
                batch.zincrby(seen, -ms, ident)
            for name in ("at", "gap"):
                if self.client.hexists(pulse, name):
                    batch.hincrby(pulse, name, -ms)
            batch.execute()

    def now(self) -> int:
        """Return the time that the server would show if it had really passed."""
        seconds, micros = self.client.time()
        return int(seconds) * 1000 + int(micros) // 1000 + self.shifted_ms

    def close(self) -> None:
        self.register.close()
        self.client.close()


def redis_bench(url: str, prefix: str) -> Iterator[RedisBench]:
    with closing(RedisBench(url, prefix)) as bench:
        yield bench

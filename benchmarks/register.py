"""(f) The question "which roles are healthy" with 10,000 workers, beside the same question with 10; and what 10,000
heartbeats cost.

The peer is ourselves: the bound says that the answer does not get slower with the fleet. Both fleets have the same ten
roles and are simulated by their heartbeats alone. The second row is the server's own CPU time for one heartbeat of
each of 10,000 workers, of the ten seconds in which a fleet of that size would send them.
"""

from __future__ import annotations

import uuid
from time import perf_counter

from app.models.heartbeat import Check, Heartbeat
from app.register.redis import RedisRegister
from benchmarks.rows import Bound, Row, interleaved, quantile
from benchmarks.world import World

ROLES = 10
INTERVAL_S = 10
HOUR_MS = 3_600_000


def measure(world: World, *, pairs: int, quick: bool) -> list[Row]:
    fleet, times = (1_000, 100) if quick else (10_000, 500)
    small, large = _register(world, "bench-few:"), _register(world, "bench-many:")
    for beat in _fleet(10):
        small.beat(beat)
    beats = list(_fleet(fleet))
    for beat in beats:
        large.beat(beat)

    def share() -> float:
        """Return the percentage of one core that a round of heartbeats takes from the server in ten seconds."""
        before = _cpu_s(world)
        for beat in beats:
            large.beat(beat)
        return (_cpu_s(world) - before) * 100 / INTERVAL_S

    def snapshot_ms(register: RedisRegister) -> float:
        taken = []
        for _ in range(times):
            start = perf_counter()
            register.snapshot()
            taken.append((perf_counter() - start) * 1000)
        return quantile(taken, 0.5)

    many, few = interleaved(pairs, lambda: snapshot_ms(large), lambda: snapshot_ms(small))
    shares = [share() for _ in range(2 if quick else min(pairs, 3))]
    for register in (small, large):
        register.close()
    return [
        Row(f"role check, {fleet:,} workers / 10 workers, p50", "ms", many, few, Bound("<=", 1.5)),
        Row(f"server CPU for {fleet:,} heartbeats in 10 s", "% of a core", shares),
    ]


def _register(world: World, prefix: str) -> RedisRegister:
    # So long a time to live that nobody is pruned while the measure lasts.
    return RedisRegister(
        world.redis_url, key_prefix=prefix, socket_timeout_s=5, interval_ms=HOUR_MS, ttl_ms=3 * HOUR_MS,
        lease_ttl_ms=3 * HOUR_MS,
    )  # fmt: skip


def _fleet(workers: int) -> list[Heartbeat]:
    """Return a heartbeat of each worker, as large as real ones are."""
    checks = {name: Check(healthy=True, detail="1 of 1 alive", ms=0.1) for name in ("consumer", "pool", "loop")}
    shared = {name: Check(healthy=True, ms=0.4, scope="shared") for name in ("redis", "mongo", "broker")}
    nodes = tuple(f"core/handler{number}" for number in range(12))
    return [
        Heartbeat(
            instance_id=str(uuid.uuid4()),
            hostname=f"host{number}",
            role=f"role{number % ROLES}",
            version="0.1.0",
            started_at="2026-01-01T00:00:00.000Z",
            healthy=True,
            checks=checks | shared,
            pid=number + 1,
            node=f"role{number % ROLES}@host{number}",
            executes=True,
            pool="prefork",
            concurrency=2,
            nodes=nodes,
        )
        for number in range(workers)
    ]


def _cpu_s(world: World) -> float:
    info = world.redis.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

"""(b) From a run being accepted to the body of its first node, beside bare ``send_task`` to the body of a task.

Both bodies are the same code: they take the time and push it into a list. The peer's clock starts before ``send_task``.
Ours starts when the ledger holds the run, which is when the 202 is owed; what follows (live state, message, delivery,
claim, ``run.started``, plan, engine) is what Rolecall adds to Celery's way. The body begins after ``run.started``, so
this is the stricter of the two ends. One run at a time on idle workers; one machine, one clock.

A second row starts the clock before the call, with what accepting costs: three round trips to MongoDB.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from app.models.run import Run
from benchmarks import peer
from benchmarks.rows import Bound, Row, quantile
from benchmarks.world import World, node

REST_S = 0.004
"""Between two samples: lets the one before end, so that none waits for another."""


def measure(world: World, *, pairs: int, quick: bool) -> list[Row]:
    count = 40 if quick else 200
    world.worker()
    world.peer_worker()
    deployment = world.deploy(node("bench/stamp", url=world.redis_url))
    runs, accepted = world.services.runs, _stamp_acceptance(world)
    bare = peer.make(world.redis_url)

    def ours() -> tuple[float, float]:
        called = time.time_ns()
        runs.start(deployment, {"input": {"n": 1}})
        body = _body(world)
        return body - accepted[-1], body - called

    def theirs() -> tuple[float, float]:
        called = time.time_ns()
        bare.send_task("peer.stamp")
        since = _body(world) - called
        return since, since

    for side in (ours, theirs):
        _sample(side, 10)
    sampled = [(_sample(ours, count), _sample(theirs, count)) for _ in range(pairs)]
    bare.close()

    def row(what: str, share: float, which: int, bound: Bound | None = None) -> Row:
        times = [[quantile([sample[which] for sample in side], share) for side in pair] for pair in sampled]
        return Row(what, "ms", [pair[0] for pair in times], [pair[1] for pair in times], bound)

    return [
        row("accepted to body, p50 / send_task to body", 0.5, 0, Bound("<=", 2.5)),
        row("accepted to body, p99", 0.99, 0),
        row("call of start to body, p50", 0.5, 1),
    ]


def _stamp_acceptance(world: World) -> list[int]:
    """Note the time whenever the ledger has taken a run."""
    store: Any = world.services.store
    insert, stamps = store.insert_run, list[int]()

    def insert_run(run: Run) -> Run | None:
        known: Run | None = insert(run)
        stamps.append(time.time_ns())
        return known

    store.insert_run = insert_run
    return stamps


def _body(world: World) -> int:
    """Return when the body of the run or task under way began, in nanoseconds."""
    answer: Any = world.redis.blpop([peer.STAMPS], timeout=20)
    if answer is None:
        raise TimeoutError("no body began within 20 s")
    return int(answer[1])


def _sample(side: Callable[[], tuple[float, float]], count: int) -> list[tuple[float, float]]:
    """Return ``count`` pairs of times in milliseconds."""
    samples = []
    for _ in range(count):
        since, since_call = side()
        samples.append((since / 1e6, since_call / 1e6))
        time.sleep(REST_S)
    return samples

"""(a) Runs drained per second, beside a bare Celery no-op.

Both sides drain a queue that was filled while nobody consumed it, from the same Valkey, with prefork 2, one message a
free slot, and early acknowledgement without kombu's emulation. A run is a flow of one node that does nothing. The peer
does nothing at all, so the ratio is what a claim, an engine, the events and a durable end cost. Housekeeping, which
copies runs into the ledger from another process, does not run here.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from app.ports import Nudge
from benchmarks import peer
from benchmarks.processes import wait_until
from benchmarks.rows import Bound, Row, interleaved
from benchmarks.world import World, node

STEP_S = 0.01


def measure(world: World, *, pairs: int, quick: bool) -> list[Row]:
    count = 300 if quick else 2_000
    worker, peer_worker = world.worker(), world.peer_worker()
    template = world.services.runs.start(world.deploy(node("bench/pass")), {"input": {"n": 1}})
    wait_until(lambda: world.ended() >= 1, "the first run has ended")
    bare = peer.make(world.redis_url)

    def fill() -> None:
        for _ in range(count):
            world.services.dispatcher.nudge(Nudge.of(world.queue_like(template)))

    def fill_peer() -> None:
        for number in range(count):
            bare.send_task("peer.noop", args=[number == count - 1])

    def our_rate() -> float:
        until = world.ended() + count
        return count / _drained(worker, fill, lambda: world.ended() >= until)

    def peer_rate() -> float:
        until = int(world.redis.get(peer.DONE) or 0) + 1
        return count / _drained(peer_worker, fill_peer, lambda: int(world.redis.get(peer.DONE) or 0) >= until)

    ours, theirs = interleaved(pairs, our_rate, peer_rate)
    bare.close()
    return [Row("runs drained per second / bare Celery no-op", "/s", ours, theirs, Bound(">=", 0.5))]


def _drained(worker: int, fill: Callable[[], None], done: Callable[[], bool]) -> float:
    """Fill a worker's queue while its main process stands still; return the seconds from its going on to the end."""
    os.kill(worker, signal.SIGSTOP)
    try:
        fill()
    finally:
        os.kill(worker, signal.SIGCONT)
    start = time.perf_counter()
    wait_until(done, "the queue is drained", seconds=120, step=STEP_S)
    return time.perf_counter() - start

"""(g) 500 open streams of one run, and one event to all of them.

No peer: the bound is a time. The admin app is a real gunicorn with gevent; the clients are plain sockets in this
process, which also appends the event, so that one clock measures both. Timed is from before the append to the last byte
of the event at each client; a pass is the 99th percentile over the clients.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import time

from app.models.event import NODE_PROGRESS, NewEvent
from app.models.run import Run, WorkerRef
from benchmarks.rows import Bound, Row, quantile
from benchmarks.world import ROLE, World

PATIENCE_S = 30.0
AT_ONCE = 25
"""Streams opened together; opening is not what is measured."""


def measure(world: World, *, pairs: int, quick: bool) -> list[Row]:
    clients, passes = (100, 3) if quick else (500, 2 * pairs)
    live = world.services.live
    run = Run(secrets.token_hex(16), "streams", "only", "flow", "1", ROLE, 0)
    world.services.store.insert_run(run)
    live.create(run)
    token = secrets.token_hex(16)
    live.claim(run.run_id, worker=WorkerRef("bench", "bench", ROLE), token=token, ttl_ms=600_000)
    with _Clients(world.admin, f"/api/v1/runs/{run.run_id}/events") as crowd:
        for _ in range(0, clients, AT_ONCE):
            crowd.open(AT_ONCE)
            crowd.wait_for(2)
        time.sleep(0.5)
        p50, p99 = list[float](), list[float]()
        for number in range(1, passes + 1):
            start = time.perf_counter()
            live.append(run.run_id, token, number, [NewEvent(NODE_PROGRESS, "n", {"step": number})])
            times = [(at - start) * 1000 for at in crowd.wait_for(2 + number)]
            p50.append(quantile(times, 0.5))
            p99.append(quantile(times, 0.99))
            time.sleep(0.3)
    return [
        Row(f"one event to {clients} streams, p99 of the clients", "ms", p99, bound=Bound("<=", 400)),
        Row(f"one event to {clients} streams, p50 of the clients", "ms", p50),
    ]


class _Clients:
    """Many streams of one run, read by one thread."""

    def __init__(self, port: int, path: str) -> None:
        self._port = port
        self._request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode()
        self._selector = selectors.DefaultSelector()
        self._tails: dict[socket.socket, bytes] = {}

    def open(self, count: int) -> None:
        """Open more streams."""
        for _ in range(count):
            each = socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE_S)
            each.sendall(self._request)
            each.setblocking(False)
            self._selector.register(each, selectors.EVENT_READ)
            self._tails[each] = b""

    def __enter__(self) -> _Clients:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._tails:
            each.close()
        self._selector.close()

    def wait_for(self, seq: int) -> list[float]:
        """Return when each client had the event ``seq`` to its last byte."""
        mark = f"id:{seq}\n".encode()
        missing, times = {each for each, tail in self._tails.items() if not _has(tail, mark)}, list[float]()
        deadline = time.perf_counter() + PATIENCE_S
        while missing:
            ready = self._selector.select(1.0)
            for key, _ in ready:
                each: socket.socket = key.fileobj  # type: ignore[assignment]
                received = each.recv(65_536)
                if not received:
                    raise RuntimeError(f"a stream ended early: {self._tails[each][-300:]!r}")
                self._tails[each] = (self._tails[each] + received)[-2_000:]
                if each in missing and _has(self._tails[each], mark):
                    missing.discard(each)
                    times.append(time.perf_counter())
            if time.perf_counter() > deadline:
                raise TimeoutError(f"{len(missing)} streams lack event {seq} after {PATIENCE_S:g} s")
        return times


def _has(tail: bytes, mark: bytes) -> bool:
    at = tail.find(mark)
    return at >= 0 and b"\n\n" in tail[at:]

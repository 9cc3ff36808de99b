"""(c) From the POST to the first server-sent event, beside a minimal Flask + Celery + pub/sub app.

Both web processes run under gunicorn's gevent worker, both workers under prefork 2. The peer is as small as such an app
can be: its client opens the stream of a channel first, then posts the channel's name, and the task publishes there; it
stores nothing and would lose an event that nobody listens to. Our client posts and asks for the events as the answer,
on a connection that is open already: one request on each side.

Beside that peer, which has all that we know of speed, stands one as people write it first: flask-sse's blueprint, and
Celery with the settings that it comes with (``stock_web.py``).

The first row ends with the first event of the stream, ``run.queued``, which is there once the run is durable. The
second ends with ``run.started``, the first that a worker causes, as the peer's event is. The third is the first for a
client that reads the run's id from the answer of its POST and then asks for the stream: two requests to the peer's one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from http.client import HTTPConnection
from itertools import count

from benchmarks.rows import Bound, Row, quantile
from benchmarks.world import World, node

REST_S = 0.004
_SENT = {"Content-Type": "application/json"}
_CHANNELS = count()


def measure(world: World, *, pairs: int, quick: bool) -> list[Row]:
    samples = 30 if quick else 150
    world.worker()
    world.peer_worker()
    deployment = world.deploy(node("bench/pass"))
    admin, peer_web, stock_web = world.admin, world.peer_web, world.stock_web
    poster, peer_poster, stock_poster = (HTTPConnection("127.0.0.1", port) for port in (admin, peer_web, stock_web))
    path, body = f"/api/v1/deployments/{deployment}/runs", {"input": {"n": 1}}

    def ours() -> list[float]:
        return [*at_once(), in_two()]

    def at_once() -> list[float]:
        listener = HTTPConnection("127.0.0.1", admin)
        listener.connect()
        start = time.perf_counter()
        listener.request("POST", path, json.dumps(body), _SENT | {"Accept": "text/event-stream"})
        first, started = _events(listener, 2)
        listener.close()
        return [first - start, started - start]

    def in_two() -> float:
        listener = HTTPConnection("127.0.0.1", admin)
        listener.connect()
        start = time.perf_counter()
        listener.request("GET", _post(poster, path, body)["events"])
        [first] = _events(listener, 1)
        listener.close()
        return first - start

    def theirs() -> list[float]:
        channel = f"bench:{next(_CHANNELS)}"
        listener = HTTPConnection("127.0.0.1", peer_web)
        listener.request("GET", f"/stream/{channel}")
        response = listener.getresponse()
        response.readline(), response.readline()  # subscribed
        start = time.perf_counter()
        _post(peer_poster, "/tasks", {"channel": channel})
        while not response.readline().startswith(b"data:"):
            pass
        end = time.perf_counter()
        listener.close()
        return [end - start]

    def stock() -> list[float]:
        channel = f"bench:{next(_CHANNELS)}"
        listener = HTTPConnection("127.0.0.1", stock_web)
        listener.request("GET", f"/stream?channel={channel}")
        # It says nothing before there is an event, not even that it listens.
        while not world.redis.pubsub_channels(channel):
            time.sleep(REST_S)
        start = time.perf_counter()
        _post(stock_poster, "/tasks", {"channel": channel})
        [end] = _events(listener, 1)
        listener.close()
        return [end - start]

    def sample(side: Callable[[], list[float]], times: int) -> list[list[float]]:
        # The server has closed what was idle while the other side had its turn; the first request opens it anew.
        for each in posters:
            each.close()
        side()
        return _sample(side, times)

    posters = (poster, peer_poster, stock_poster)
    for side in (ours, theirs, stock):
        sample(side, 5)
    taken = [(sample(ours, samples), sample(theirs, samples), sample(stock, samples)) for _ in range(pairs)]
    for each in posters:
        each.close()

    def row(what: str, which: int, bound: Bound | None = None, *, peer: int = 1) -> Row:
        def medians(side: int, value: int) -> list[float]:
            return [quantile([sample[value] for sample in one[side]], 0.5) for one in taken]

        return Row(what, "ms", medians(0, which), medians(peer, 0), bound)

    return [
        row("POST to first SSE event, p50 / minimal Flask app", 0, Bound("<=", 1.5)),
        row("POST to first SSE event, p50 / flask-sse and Celery out of the box", 0, peer=2),
        row("POST to run.started on the stream, p50", 1),
        row("POST, then the stream, to its first event, p50", 2),
    ]


def _post(connection: HTTPConnection, path: str, body: object) -> dict[str, str]:
    connection.request("POST", path, json.dumps(body), _SENT)
    response = connection.getresponse()
    answer: dict[str, str] = json.loads(response.read())
    if response.status != 202:
        raise RuntimeError(f"POST {path}: {response.status} {answer}")
    return answer


def _events(connection: HTTPConnection, wanted: int) -> list[float]:
    """Return when each of the first events of a stream was there."""
    response, times = connection.getresponse(), list[float]()
    while len(times) < wanted:
        line = response.readline()
        if not line:
            raise RuntimeError("the stream ended early")
        if line.startswith(b"data:"):
            times.append(time.perf_counter())
    return times


def _sample(side: Callable[[], list[float]], times: int) -> list[list[float]]:
    """Return samples in milliseconds."""
    samples = []
    for _ in range(times):
        samples.append([second * 1000 for second in side()])
        time.sleep(REST_S)
    return samples

"""The peer of the measures with a worker: Celery alone, with the settings under which Rolecall's workers run.

``celery -A benchmarks.peer worker -Q peer``; the broker comes from Celery's own variable ``CELERY_BROKER_URL``.
"""

from __future__ import annotations

import time
from functools import lru_cache

import redis
from celery import Celery

QUEUE = "peer"
DONE = "bench:peer:done"
STAMPS = "bench:stamps"


def make(broker_url: str | None = None) -> Celery:
    """Return the peer's app. What is set is what Rolecall sets, see ``app/celery.py``; the rest is Celery's default."""
    celery = Celery("peer", broker=broker_url, set_as_current=False)
    celery.conf.update(
        broker_transport_options={"ack_emulation": False},
        broker_connection_retry_on_startup=True,
        task_default_queue=QUEUE,
        task_ignore_result=True,
        task_acks_late=False,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_send_task_events=False,
    )
    return celery


app = make()


@lru_cache
def client(url: str) -> redis.Redis:
    """Return this process's client; called only in children of a pool, so after the fork."""
    return redis.Redis.from_url(url)


@app.task(name="peer.noop")
def noop(last: bool = False) -> None:
    """Do nothing; the last of a batch says that it was reached."""
    if last:
        client(app.conf.broker_url).incr(DONE)


@app.task(name="peer.stamp")
def stamp() -> None:
    """Report when the body began."""
    at = time.time_ns()
    client(app.conf.broker_url).rpush(STAMPS, at)


@app.task(name="peer.tell")
def tell(channel: str) -> None:
    """Publish one event."""
    client(app.conf.broker_url).publish(channel, '{"type": "started"}')

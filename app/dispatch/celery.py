"""Nudges by Celery: a ``flow.run`` message in the queue named after the role."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from celery import Celery
from celery.utils import uuid
from kombu import Connection
from kombu.exceptions import ChannelError, KombuError, OperationalError
from kombu.pools import ProducerPool

from app.celery import RUN_TASK, role_queue
from app.errors import ServerUnavailable
from app.models.run import MAX_PRIORITY
from app.ports import Nudge

# One more try, for a pooled connection that the broker closed meanwhile; each is bounded by the socket timeout.
_RETRY: dict[str, Any] = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}

QUICKLY_S = 0.5
"""A closed connection shows at once. A try that took longer than this met a silent broker, and is not repeated."""


class CeleryDispatcher:
    """Sends nudges through a Celery app's pool of producers. Thread-safe; made after a fork."""

    def __init__(self, celery: Celery) -> None:
        self._celery = celery
        self._lowest_first = str(celery.conf.broker_url).startswith(("redis", "sentinel", "unix"))

    @cached_property
    def _producers(self) -> ProducerPool:
        # Of its own: Celery's is one for the whole process and stays closed for everybody once somebody closed it.
        limit, connection = self._celery.conf.broker_pool_limit, self._celery.connection_for_write()
        if self._lowest_first:
            connection.transport_cls = _keeping_client(connection.get_transport_cls())
        return ProducerPool(connection.Pool(limit), limit)

    def ping(self) -> None:
        """Ask the broker something real.

        Raises:
            ServerUnavailable: ``broker``; it did not answer in time.
        """
        with self._connected() as connection:
            if self._lowest_first:
                connection.default_channel.client.ping()

    def depth(self, roles: Collection[str]) -> Mapping[str, int]:
        """Return how many messages lie ready for each role (2 round trips a role).

        Raises:
            ServerUnavailable: ``broker``; it did not answer in time.
        """
        with self._connected() as connection:
            return {role: _ready(connection, role) for role in roles}

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """A connection of its own, for questions that are rare; its errors are ours."""
        try:
            with self._celery.connection_for_write() as connection:
                connection.ensure_connection(**_RETRY, reraise_as_library_errors=True)
                yield connection
        except (KombuError, OSError, OperationalError) as error:
            raise _unavailable(error) from error
        except connection_errors(self._celery) as error:
            raise _unavailable(error) from error

    def nudge(self, nudge: Nudge) -> None:
        """Send one ``flow.run`` message (1 round trip).

        Raises:
            ServerUnavailable: ``broker``; the message may or may not have arrived.
        """
        # What `send_task` does, but for its looking for a task of that name and its making a result that nobody reads.
        amqp = self._celery.amqp
        message = amqp.as_task_v2(
            uuid(),
            RUN_TASK,
            kwargs={"run_id": nudge.run_id, "attempt": nudge.attempt},
            # Given, so that Celery does not spend a fifth of the call on making them.
            argsrepr="()",
            kwargsrepr=f"run_id={nudge.run_id}",
            ignore_result=True,
        )
        headers = {
            "target_role": nudge.target_role,
            "run_id": nudge.run_id,
            "flow_id": nudge.flow_id,
            "version_id": nudge.version_id,
            "deployment_id": nudge.deployment_id,
            "variant": nudge.variant,
        }
        try:
            with self._producers.acquire(block=True) as producer:
                amqp.send_task_message(
                    producer,
                    RUN_TASK,
                    message,
                    queue=role_queue(nudge.target_role, quorum=not self._lowest_first),
                    headers=headers,
                    priority=self._priority(nudge.priority),
                    retry=True,
                    retry_policy=_RETRY | {"errback": _give_up_after(QUICKLY_S)},
                )
        except (KombuError, OSError) as error:
            raise _unavailable(error) from error
        except connection_errors(self._celery) as error:
            raise _unavailable(error) from error

    def close(self) -> None:
        """Close the pooled connections."""
        if "_producers" in vars(self):
            self._producers.force_close_all()
            self._producers.connections.force_close_all()

    def _priority(self, priority: int) -> int:
        # On Redis kombu takes the lowest number first; ours, and RabbitMQ's, is the highest.
        return MAX_PRIORITY - priority if self._lowest_first else priority


def _give_up_after(seconds: float) -> Callable[[BaseException, float], None]:
    """Return what kombu calls between two tries; it raises the error if the first has taken so long."""
    began = time.monotonic()

    def errback(error: BaseException, _: float) -> None:
        if time.monotonic() - began > seconds:
            raise error

    return errback


def _ready(connection: Connection, role: str) -> int:
    # A channel each: RabbitMQ closes the one on which it was asked for a queue that nobody has made yet.
    with connection.channel() as channel:
        try:
            return int(channel.queue_declare(role, passive=True).message_count)
        except ChannelError:
            return 0


def _keeping_client(transport: Any) -> Any:
    """Return kombu's transport for Redis, but with one client a channel: it makes a new one for every command."""

    class Channel(transport.Channel):  # type: ignore[misc]
        _kept: Any = None

        @contextmanager
        def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
            if client is None:
                # A channel that has lost its connections has another pool afterwards.
                if self._kept is None or self._kept.connection_pool is not self.pool:
                    self._kept = self._create_client()
                client = self._kept
            yield client

    return type("Transport", (transport,), {"Channel": Channel})


def connection_errors(celery: Celery) -> tuple[type[BaseException], ...]:
    """Return the exceptions of the app's broker library."""
    transport = celery.connection_for_write().transport
    found: tuple[Any, ...] = (*transport.connection_errors, *transport.channel_errors)
    return found


def _unavailable(error: BaseException) -> ServerUnavailable:
    return ServerUnavailable("broker", str(error)[:200] or type(error).__name__)

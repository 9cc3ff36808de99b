"""The bell that tells readers of a run's log that there is more to read: in memory, and by Redis' pub/sub."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import redis

from app.clock import Monotonic
from app.errors import RolecallError, ServerUnavailable
from app.live.memory import MemoryLive
from app.redis_client import RedisServer

logger = logging.getLogger(__name__)

PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Waits between attempts to connect again; the last one repeats."""


class Watcher:
    """One reader's bell."""

    def __init__(self) -> None:
        self._rang = threading.Event()

    def ring(self) -> None:
        self._rang.set()

    def wait(self, seconds: float) -> bool:
        """Return true as soon as it rang since the last wait, false when the time is over."""
        if not self._rang.wait(seconds):
            return False
        # Cleared before the caller reads the log: what comes during its reading rings again.
        self._rang.clear()
        return True


class MemoryBell:
    """Implements :class:`app.ports.Bell` for runs in memory."""

    def __init__(self, live: MemoryLive) -> None:
        self._watchers: defaultdict[str, set[Watcher]] = defaultdict(set)
        self._lock = threading.Lock()
        live.listen(self._ring)

    @contextmanager
    def watch(self, run_id: str) -> Iterator[Callable[[float], bool]]:
        watcher = Watcher()
        with self._lock:
            self._watchers[run_id].add(watcher)
        try:
            yield watcher.wait
        finally:
            with self._lock:
                self._watchers[run_id].discard(watcher)
                if not self._watchers[run_id]:
                    del self._watchers[run_id]

    def close(self) -> None:
        """Ring every bell, so that nobody waits for events that cannot come."""
        with self._lock:
            watchers = [watcher for group in self._watchers.values() for watcher in group]
        for watcher in watchers:
            watcher.ring()

    def _ring(self, run_id: str) -> None:
        with self._lock:
            watchers = list(self._watchers.get(run_id, ()))
        for watcher in watchers:
            watcher.ring()


@dataclass(slots=True)
class _Channel:
    """A run with open watchers."""

    watchers: set[Watcher] = field(default_factory=set)
    in_force: bool = False
    """The server has acknowledged the subscription."""
    missed: bool = False
    """Events may have passed unheard: ring once it is in force."""
    settled: threading.Event = field(default_factory=threading.Event)
    """It is in force, or Redis is away: there is nothing to wait for."""

    def ring(self) -> None:
        for watcher in self.watchers:
            watcher.ring()


class RedisBell:
    """Implements :class:`app.ports.Bell` with one pub/sub connection, subscribed to the runs that are watched.

    One thread owns the connection: it connects, reads, and connects again. Watchers only send on it, under the lock
    under which they also enter and leave the table, so that what the server hears is always in the table's order. After
    a reconnect everything is subscribed again and each bell rings when its subscription is in force, so that nothing
    that happened meanwhile goes unheard. A connection that is silent for a while is asked whether it is alive.

    The thread starts with the first watcher, and so after a fork.
    """

    def __init__(
        self, url: str, *, key_prefix: str, socket_timeout_s: float, monotonic: Monotonic = time.monotonic
    ) -> None:
        self._server = RedisServer(url, socket_timeout_s=socket_timeout_s)
        self._prefix = f"{key_prefix}run.events."
        self._timeout_s = socket_timeout_s
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._channels: dict[str, _Channel] = {}
        self._connection: Any = None
        """The connection on which watchers may send; ``None`` while there is none."""
        self._away = False
        self._unanswered: Counter[str] = Counter()
        """Subscriptions sent on this connection that the server has not acknowledged, by channel."""
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def watch(self, run_id: str) -> Iterator[Callable[[float], bool]]:
        name, watcher = self._prefix + run_id, Watcher()
        channel = self._enter(name, watcher)
        try:
            channel.settled.wait(self._timeout_s)
            with self._lock:
                if not channel.in_force:
                    channel.missed = True
                    watcher.ring()
            yield watcher.wait
        finally:
            self._leave(name, channel, watcher)

    def close(self) -> None:
        """End the thread and ring every bell, so that nobody waits for events that cannot come."""
        with self._lock:
            self._closing.set()
            self._send("PING")  # its answer wakes the thread
            for channel in self._channels.values():
                channel.settled.set()
                channel.ring()
        if self._thread is not None:
            self._thread.join(2 * self._timeout_s)
        self._server.close()

    # --- watchers ------------------------------------------------------------------------------------------------

    def _enter(self, name: str, watcher: Watcher) -> _Channel:
        with self._lock:
            channel = self._channels.get(name)
            if channel is None:
                channel = self._channels[name] = _Channel()
                self._subscribe([name])
                if self._away or self._closing.is_set():
                    channel.settled.set()
            channel.watchers.add(watcher)
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._own, name="bell", daemon=True)
                self._thread.start()
            return channel

    def _leave(self, name: str, channel: _Channel, watcher: Watcher) -> None:
        with self._lock:
            channel.watchers.discard(watcher)
            if not channel.watchers:
                del self._channels[name]
                self._send("UNSUBSCRIBE", name)

    def _subscribe(self, names: list[str]) -> None:
        if self._send("SUBSCRIBE", *names):
            self._unanswered.update(names)

    def _send(self, *words: str) -> bool:
        """Send without waiting for the answer; the caller holds the lock. A broken connection is left to its owner."""
        if self._connection is None:
            return False
        try:
            self._connection.send_command(*words, check_health=False)
        except redis.RedisError:
            self._lose()
            return False
        return True

    def _lose(self) -> None:
        """There is no connection any more; the caller holds the lock."""
        self._connection = None
        self._away = True
        self._unanswered.clear()
        for channel in self._channels.values():
            channel.in_force, channel.missed = False, True
            channel.settled.set()

    # --- the thread that owns the connection ---------------------------------------------------------------------

    def _own(self) -> None:
        failures = 0
        while not self._closing.is_set():
            try:
                with self._connected() as connection:
                    failures = 0
                    self._listen(connection)
            except Exception as error:
                # Reading from a connection that a watcher's failed send has just torn down may raise anything.
                # Whatever it was, the mend is the same, and readers that go to the log meanwhile are told.
                if failures == 0:
                    logger.warning("the bell has lost Redis and tries again: %s", error)
            self._closing.wait(PAUSES_S[min(failures, len(PAUSES_S) - 1)])
            failures += 1

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        try:
            with self._server.errors():
                pool = self._server.client.connection_pool
                connection: Any = pool.get_connection()
        except RolecallError:
            with self._lock:
                self._lose()
            raise
        try:
            with self._lock:
                self._connection, self._away = connection, False
                if self._channels:
                    self._subscribe(list(self._channels))
            yield connection
        finally:
            with self._lock:
                self._lose()
            connection.disconnect()
            pool.release(connection)

    def _listen(self, connection: Any) -> None:
        """Ring bells until the connection breaks, stays silent, or the bell is closed."""
        asked_at: float | None = None
        while not self._closing.is_set() and self._connection is connection:
            if connection.can_read(timeout=self._timeout_s / 2):
                asked_at = None
                self._hear(connection.read_response())
            elif asked_at is None:
                with self._lock:
                    self._send("PING")
                asked_at = self._monotonic()
            elif self._monotonic() - asked_at > self._timeout_s:
                raise ServerUnavailable("redis", "no answer in time")

    def _hear(self, answer: Any) -> None:
        match answer:
            case ["message", name, _]:
                with self._lock:
                    if name in self._channels:
                        self._channels[name].ring()
            case ["subscribe", name, _]:
                with self._lock:
                    self._acknowledged(name)

    def _acknowledged(self, name: str) -> None:
        self._unanswered[name] -= 1
        # An older subscription to the same run, given up and made again, may be answered first.
        if self._unanswered[name] <= 0:
            del self._unanswered[name]
            if channel := self._channels.get(name):
                channel.in_force = True
                channel.settled.set()
                if channel.missed:
                    channel.missed = False
                    channel.ring()

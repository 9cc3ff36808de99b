"""The one place that builds Redis clients, and the one place that turns their errors into ours.

An adapter makes one :class:`RedisServer` from the settings and asks it for everything else::

    server = RedisServer(settings.redis_url, socket_timeout_s=settings.socket_timeout_s)
    beat = server.script(source)                     # nothing is sent yet
    answer = beat(keys=[...], args=[...])            # one round trip; raises app.errors only
    with server.errors():
        server.client.xrange(...)                    # any other command

What it holds to:

* no socket is opened before the first command, and never by an import or a constructor;
* a process that forks gets new connections in the child; the parent's are left alone;
* no command is ever sent twice. A pooled connection that the server closed meanwhile is noticed and replaced *before*
  it is used, so that a restart of the server costs nothing, while a reply that is late may well have taken effect and
  must not be asked for again;
* a frozen or unreachable server costs one ``socket_timeout_s``, two at most;
* ``redis.exceptions`` leave as :class:`~app.errors.ServerUnavailable`, or :class:`~app.errors.OutOfMemory` when the
  server is at ``maxmemory``; no text has a password;
* Redis Cluster and servers older than 7.0 are refused, with the reason, before the first command.

Answers are ``str`` (``decode_responses``), protocol RESP2.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import SplitResult, urlsplit, urlunsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from app.errors import SettingError
from app.redis_scripts import Script, Wires, translate

MIN_VERSION = (7, 0)
HEALTH_CHECK_S = 15
"""A pooled connection idle for longer is pinged first: a firewall may have dropped it without a word."""

SENTINEL_PORT = 26379
MAX_CONNECTIONS = 32


def connect(url: str, *, socket_timeout_s: float) -> redis.Redis:
    """Build a client without opening a socket.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://`` as redis-py reads them, TLS options in the query
            (``?ssl_ca_certs=/path``); or ``sentinel://[user:password@]host[:port],host[:port]/<service>[/<db>]``,
            ``rediss+sentinel://`` for TLS to servers and sentinels.
        socket_timeout_s: Longest wait for a connection, and for one answer.

    Raises:
        SettingError: the address cannot be read.
    """
    options: dict[str, Any] = {
        "socket_timeout": socket_timeout_s,
        "socket_connect_timeout": socket_timeout_s,
        "health_check_interval": HEALTH_CHECK_S,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "decode_responses": True,
    }
    parts = urlsplit(url)
    if parts.scheme != "unix":
        options["socket_keepalive"] = True
    try:
        if parts.scheme in ("sentinel", "rediss+sentinel"):
            client = _behind_sentinel(parts, options)
        else:
            _check_address(parts)
            # Hundreds of greenlets may read at once: beyond this many connections they wait for one, and not for long.
            waiting = {"max_connections": MAX_CONNECTIONS, "timeout": socket_timeout_s}
            pool = redis.BlockingConnectionPool.from_url(url, **options, **waiting)
            client = redis.Redis.from_pool(pool)
        # An option in the query that no connection knows would otherwise show up as a TypeError much later.
        client.connection_pool.connection_class(**client.connection_pool.connection_kwargs)
    except (ValueError, TypeError) as error:
        raise SettingError(
            f"REDIS_URL cannot be read: {error}. Example: REDIS_URL=redis://127.0.0.1:6379/0, or "
            "REDIS_URL=sentinel://10.0.0.1:26379,10.0.0.2:26379/mymaster/0"
        ) from None
    return client


class RedisServer:
    """One Redis or Valkey (perhaps behind Sentinel), reached lazily; see the module's text for what it holds to."""

    def __init__(self, url: str, *, socket_timeout_s: float) -> None:
        self._connect: Callable[[], redis.Redis] = lambda: connect(url, socket_timeout_s=socket_timeout_s)
        self._clients: dict[int, redis.Redis] = {}
        self._wires: dict[int, Wires] = {}
        self._checked: int | None = None
        self._connect().close()  # a bad address is told at start, by whoever reads the settings

    @property
    def client(self) -> redis.Redis:
        """The client of this process. Use it inside ``with server.errors():``.

        Raises:
            SettingError: the server is a Redis Cluster, or too old.
            ServerUnavailable: it cannot be asked.
        """
        pid = os.getpid()
        client = self._clients.get(pid)
        if client is None:
            self._clients.clear()
            client = self._clients.setdefault(pid, self._connect())
        if self._checked != pid:
            with self.errors():
                _check_server(client.info("server"))
            self._checked = pid
        return client

    def wires(self) -> Wires:
        """Return the connections of this process for scripts; raises as :attr:`client` does."""
        pid = os.getpid()
        wires = self._wires.get(pid)
        if wires is None:
            # Of several threads that come here at once all get the same one.
            wires = self._wires.setdefault(pid, Wires(self.client.connection_pool))
        return wires

    def script(self, source: str) -> Script:
        """Prepare a Lua script. It may begin with ``#!lua flags=allow-oom``."""
        return Script(self.wires, source)

    def ping(self) -> None:
        """Ask the server something real."""
        with self.errors():
            self.client.ping()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn what redis-py raises inside the block into errors of ours."""
        try:
            yield
        except redis.RedisError as error:
            raise translate(error) from error

    def close(self) -> None:
        """Close this process's connections; the next command opens new ones."""
        client = self._clients.pop(os.getpid(), None)
        self._wires.pop(os.getpid(), None)
        if client is not None:
            client.close()
            if isinstance(client.connection_pool, SentinelConnectionPool):
                for sentinel in client.connection_pool.sentinel_manager.sentinels:
                    sentinel.close()


def _behind_sentinel(parts: SplitResult, options: dict[str, Any]) -> redis.Redis:
    userinfo, at, hosts = parts.netloc.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("the service's name is missing after the sentinels' addresses")
    scheme = "rediss" if parts.scheme.startswith("rediss") else "redis"
    single = urlsplit(urlunsplit((scheme, f"{userinfo}{at}sentinel", f"/{database}", parts.query, "")))
    _check_address(single)
    server: dict[str, Any] = options | parse_url(single.geturl())  # type: ignore[no-untyped-call]
    del server["host"]
    tls = server.pop("connection_class", None) is not None
    sentinels = [_address(host) for host in hosts.split(",")]
    # All sentinels together may cost no more than one server would.
    each = options["socket_timeout"] / len(sentinels)
    ask = {key: value for key, value in server.items() if key.startswith("ssl_")} | {
        "socket_timeout": each,
        "socket_connect_timeout": each,
        "retry": options["retry"],
        "protocol": options["protocol"],
        "ssl": tls,
    }
    monitor = Sentinel(sentinels, sentinel_kwargs=ask)  # type: ignore[no-untyped-call]
    client: redis.Redis = monitor.master_for(service, ssl=tls, **server)  # type: ignore[no-untyped-call]
    return client


def _address(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    _check_address(parts)
    if not parts.hostname:
        raise ValueError("a sentinel's address is empty")
    return parts.hostname, parts.port or SENTINEL_PORT


def _check_address(parts: SplitResult) -> None:
    # The texts do not repeat what they complain of: a password with a "/" or "#" in it ends up in port or path.
    if parts.scheme == "unix":
        return
    try:
        parts.port  # noqa: B018 - reading it is the check
    except ValueError:
        raise ValueError(
            "the port is not a number up to 65535 (write ':', '/', '#' in a password as %3A, %2F, %23)"
        ) from None
    # redis-py takes a database that is no number for 0, and one installation would write into another's.
    if not re.fullmatch(r"/?\d*", parts.path):
        raise ValueError("the database, what follows the address, is not a number")


def _check_server(info: dict[str, Any]) -> None:
    mode = info.get("redis_mode")
    if mode == "cluster":
        raise SettingError(
            "REDIS_URL names a Redis Cluster; Rolecall's scripts touch keys of several slots, so it needs a single "
            "server or Sentinel. Example: REDIS_URL=redis://127.0.0.1:6379/0"
        )
    if mode == "sentinel":
        raise SettingError(
            "REDIS_URL names a Sentinel, which stores nothing; name it with the service that it watches. Example: "
            "REDIS_URL=sentinel://127.0.0.1:26379/mymaster/0"
        )
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < MIN_VERSION:
        raise SettingError(f"REDIS_URL names a server of version {version}; Rolecall needs Redis 7.0 or Valkey")

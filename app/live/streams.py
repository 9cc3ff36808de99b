"""Topics of ``stream`` edges: on Redis a stream ``<prefix>stream.<topic>``, each entry one field ``data``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.models.json_value import dumps, loads
from app.redis_client import RedisServer

KEPT: Final = 10_000


class RedisStreams:
    """Implements :class:`app.ports.Streams`. Connects when something is first published."""

    def __init__(self, url: str, *, key_prefix: str, socket_timeout_s: float) -> None:
        self._server = RedisServer(url, socket_timeout_s=socket_timeout_s)
        self._prefix = key_prefix

    def publish(self, topic: str, message: Mapping[str, Any]) -> None:
        with self._server.errors():
            self._server.client.xadd(
                f"{self._prefix}stream.{topic}", {"data": dumps(dict(message))}, maxlen=KEPT, approximate=True
            )

    def close(self) -> None:
        self._server.close()


class MemoryStreams:
    """Implements :class:`app.ports.Streams` for tests and for a whole Rolecall inside one process."""

    def __init__(self) -> None:
        self.topics: dict[str, list[Any]] = {}

    def publish(self, topic: str, message: Mapping[str, Any]) -> None:
        kept = self.topics.setdefault(topic, [])
        kept.append(loads(dumps(dict(message))))
        del kept[:-KEPT]

    def close(self) -> None:
        """Nothing is held."""

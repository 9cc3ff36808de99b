"""Topics that ``stream`` edges publish to, in memory and on Redis."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.errors import ServerUnavailable
from app.live.streams import KEPT, MemoryStreams, RedisStreams
from app.ports import Streams
from app.redis_client import RedisServer
from tests.servers import free_port

Read = Callable[[str], list[Any]]


@pytest.fixture(params=["memory", "redis"])
def topics(request: pytest.FixtureRequest) -> Iterator[tuple[Streams, Read]]:
    """What publishes, and what reads a topic from outside."""
    if request.param == "memory":
        memory = MemoryStreams()
        yield memory, lambda topic: memory.topics.get(topic, [])
        return
    url, prefix = request.getfixturevalue("valkey"), request.getfixturevalue("key_prefix")
    streams, outside = RedisStreams(url, key_prefix=prefix, socket_timeout_s=2), RedisServer(url, socket_timeout_s=2)
    entries: Any = outside.client.xrange
    yield streams, lambda topic: [json.loads(fields["data"]) for _, fields in entries(f"{prefix}stream.{topic}")]
    streams.close()
    outside.close()


def test_messages_of_a_topic_come_in_order_as_they_were(topics: tuple[Streams, Read]) -> None:
    streams, read = topics
    sent = [{"n": n, "text": "a\nb\u2028é😀"} for n in range(5)]
    for message in sent:
        streams.publish("a.b", message)
    streams.publish("other", {})
    assert read("a.b") == sent
    assert read("other") == [{}]
    assert read("none") == []


def test_a_topic_does_not_grow_without_end(topics: tuple[Streams, Read]) -> None:
    streams, read = topics
    for n in range(KEPT + 300):
        streams.publish("t", {"n": n})
    assert KEPT <= len(read("t")) <= KEPT + 200
    assert read("t")[-1] == {"n": KEPT + 299}


def test_a_server_that_is_away_is_said_so() -> None:
    streams = RedisStreams(f"redis://127.0.0.1:{free_port()}/0", key_prefix="x:", socket_timeout_s=1)
    with pytest.raises(ServerUnavailable):
        streams.publish("t", {})
    streams.close()

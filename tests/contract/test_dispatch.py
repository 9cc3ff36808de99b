"""What every dispatcher must do: the one in memory, and Celery's on a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.celery import RolecallCelery
from app.config import load_settings
from app.dispatch.celery import CeleryDispatcher
from app.dispatch.memory import MemoryDispatcher
from app.errors import ServerUnavailable
from app.ports import Dispatcher, Nudge
from app.redis_client import RedisServer
from tests.servers import free_port

pytestmark = pytest.mark.integration


@pytest.fixture(params=["memory", "celery"])
def dispatcher(request: pytest.FixtureRequest) -> Iterator[Dispatcher]:
    if request.param == "memory":
        yield MemoryDispatcher()
        return
    url = request.getfixturevalue("valkey").removesuffix("/0") + "/8"
    server = RedisServer(url, socket_timeout_s=5)
    with server.errors():
        server.client.flushdb()
    celery = RolecallCelery(load_settings({"REDIS_URL": url}))
    dispatcher = CeleryDispatcher(celery)
    yield dispatcher
    dispatcher.close()
    server.close()


def nudge(role: str, *, priority: int = 0) -> Nudge:
    return Nudge("r1", 1, role, "flow", "v1", "shop", "stable", priority)


def test_it_answers(dispatcher: Dispatcher) -> None:
    dispatcher.ping()


def test_messages_of_every_priority_are_counted_by_role(dispatcher: Dispatcher) -> None:
    for priority in range(10):
        dispatcher.nudge(nudge("worker", priority=priority))
    dispatcher.nudge(nudge("gpu-worker"))
    assert dispatcher.depth(["worker", "gpu-worker", "nobody"]) == {"worker": 10, "gpu-worker": 1, "nobody": 0}


def test_no_roles_have_no_messages(dispatcher: Dispatcher) -> None:
    assert dispatcher.depth([]) == {}


def test_a_broker_that_is_not_there_is_unavailable() -> None:
    url = f"redis://:hunter2@127.0.0.1:{free_port()}/0"
    celery = RolecallCelery(load_settings({"REDIS_URL": url}))
    dispatcher = CeleryDispatcher(celery)
    for call in (dispatcher.ping, lambda: dispatcher.depth(["worker"]), lambda: dispatcher.nudge(nudge("worker"))):
        with pytest.raises(ServerUnavailable) as caught:
            call()
        assert caught.value.server == "broker"
        assert "hunter2" not in str(caught.value)
    dispatcher.close()

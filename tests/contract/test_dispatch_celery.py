"""What Celery's dispatcher sends, and that it keeps its connection to a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from celery import signals

from app.celery import RolecallCelery
from app.config import load_settings
from app.dispatch.celery import CeleryDispatcher
from app.ports import Nudge
from app.redis_client import RedisServer

pytestmark = pytest.mark.integration

NUDGE = Nudge("r1", 2, "worker", "flow", "v1", "shop", "stable", 3)


@pytest.fixture
def url(valkey: str) -> str:
    return valkey.removesuffix("/0") + "/9"


@pytest.fixture
def broker(url: str) -> Iterator[RedisServer]:
    server = RedisServer(url, socket_timeout_s=5)
    with server.errors():
        server.client.flushdb()
    yield server
    server.close()


@pytest.fixture
def dispatcher(url: str, broker: RedisServer) -> Iterator[CeleryDispatcher]:
    dispatcher = CeleryDispatcher(RolecallCelery(load_settings({"REDIS_URL": url})))
    yield dispatcher
    dispatcher.close()


def received(broker: RedisServer) -> int:
    with broker.errors():
        return int(broker.client.info("stats")["total_connections_received"])


def test_a_nudge_is_a_message_as_celery_writes_it(dispatcher: CeleryDispatcher, broker: RedisServer) -> None:
    dispatcher.nudge(NUDGE)

    with broker.errors():
        (key,) = broker.client.keys("worker*")
        message = json.loads(broker.client.lindex(key, 0) or "")
    headers, properties = message["headers"], message["properties"]
    assert headers["task"] == "flow.run"
    assert headers["ignore_result"] is True
    assert headers["id"] == properties["correlation_id"]
    assert {name: headers[name] for name in ("target_role", "run_id", "flow_id", "version_id")} == {
        "target_role": "worker", "run_id": "r1", "flow_id": "flow", "version_id": "v1",
    }  # fmt: skip
    assert (headers["deployment_id"], headers["variant"]) == ("shop", "stable")
    # On Redis the lowest number is taken first.
    assert properties["priority"] == 9 - 3


def test_whoever_hooks_into_the_sending_of_tasks_sees_nudges(dispatcher: CeleryDispatcher) -> None:
    seen = []

    def hook(sender: str, headers: dict[str, str], **_: object) -> None:
        seen.append((sender, headers["run_id"]))

    signals.before_task_publish.connect(hook)
    try:
        dispatcher.nudge(NUDGE)
    finally:
        signals.before_task_publish.disconnect(hook)

    assert seen == [("flow.run", "r1")]


def test_many_nudges_take_one_connection(dispatcher: CeleryDispatcher, broker: RedisServer) -> None:
    dispatcher.nudge(NUDGE)
    before = received(broker)
    for _ in range(50):
        dispatcher.nudge(NUDGE)

    assert received(broker) == before
    assert dispatcher.depth(["worker"]) == {"worker": 51}


def test_a_connection_that_the_broker_closed_costs_no_nudge(dispatcher: CeleryDispatcher, broker: RedisServer) -> None:
    dispatcher.nudge(NUDGE)
    for _ in range(3):
        with broker.errors():
            broker.client.client_kill_filter(_type="normal", skipme=True)
        dispatcher.nudge(NUDGE)

    assert dispatcher.depth(["worker"]) == {"worker": 4}

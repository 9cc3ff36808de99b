"""The fleet, counters and health over HTTP."""

from __future__ import annotations

import pytest

from tests.unit.admin_world import World, world

__all__ = ["world"]


# --- counters, fleet --------------------------------------------------------------------------------------------------


def test_a_counter_shows_how_often_it_was_counted(world: World) -> None:
    world.services.store.count("mail/sent", "packet-1")
    world.services.store.count("mail/sent", "packet-2")

    assert world.client.get("/api/v1/counters/mail/sent").json == {"key": "mail/sent", "count": 2}
    assert world.client.get("/api/v1/counters/never").json == {"key": "never", "count": 0}


def test_workers_are_shown_as_they_describe_themselves(world: World) -> None:
    beat = world.beat("gpu-worker", checks={"gpu": {"healthy": False, "detail": "no device"}}, healthy=False)

    answer = world.client.get("/admin/workers").json

    (worker,) = answer["workers"]
    assert worker.items() >= beat.to_wire().items()
    assert worker["state"] == "unhealthy"
    assert worker["last_seen"].endswith("Z")
    assert answer["roles"]["gpu-worker"]["healthy"] is False


def test_roles_say_who_could_be_given_a_run(world: World) -> None:
    world.ready()
    world.beat("worker", "worker-2", draining=True)
    run = world.start(meta={"session_id": "a"})

    roles = world.client.get("/admin/roles").json["roles"]

    assert set(roles) == {"worker", "gpu-worker", "dispatcher", "admin-api"}
    assert set(roles["worker"]) == {
        "healthy",
        "eligible",
        "workers",
        "free",
        "queued",
        "oldestQueuedS",
        "draining",
        "drained",
    }
    assert (roles["worker"]["workers"], roles["dispatcher"]["eligible"]) == (2, False)
    target = roles[run["targetRole"]]
    assert (target["queued"], target["free"]) == (1, 1)
    assert target["oldestQueuedS"] >= 0


def test_a_register_that_knows_nothing_is_503_and_not_an_empty_fleet(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.ready()
    world.take_away("redis", monkeypatch)

    for path in ("/admin/workers", "/admin/roles"):
        answer = world.client.get(path)
        assert (answer.status_code, answer.json["code"]) == (503, "register_unknown")
        assert "Retry-After" in answer.headers
    start = world.client.post("/api/v1/deployments/hello/runs", json={})
    assert (start.status_code, start.json["code"]) == (503, "register_unknown")


# --- health -----------------------------------------------------------------------------------------------------------


def test_alive_asks_no_server(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for server in ("redis", "mongo", "broker"):
        world.take_away(server, monkeypatch)

    assert world.client.get("/healthz").json == {"status": "ok"}


def test_ready_needs_a_dispatcher(world: World) -> None:
    world.beat("worker")
    without = world.client.get("/readyz")
    world.beat("dispatcher")
    world.app.extensions["rolecall"].readiness._asked_at = float("-inf")
    with_one = world.client.get("/readyz")

    assert (without.status_code, without.json["ready"]) == (503, False)
    assert without.json["checks"]["dispatcher"]["healthy"] is False
    assert "SERVICE_ROLE=dispatcher" in without.json["checks"]["dispatcher"]["detail"]
    assert "Retry-After" in without.headers
    assert (with_one.status_code, with_one.json["ready"]) == (200, True)
    assert set(with_one.json["checks"]) == {"register", "dispatcher", "redis", "mongo", "broker"}


@pytest.mark.parametrize(
    ("server", "also"), [("redis", {"register", "dispatcher"}), ("mongo", set()), ("broker", set())]
)
def test_ready_names_the_server_that_is_away(
    world: World, monkeypatch: pytest.MonkeyPatch, server: str, also: set[str]
) -> None:
    world.ready()
    world.take_away(server, monkeypatch)

    answer = world.client.get("/readyz")

    assert answer.status_code == 503
    assert {name for name, check in answer.json["checks"].items() if not check["healthy"]} == {server} | also


def test_metrics_come_from_the_living(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.ready()
    world.start(meta={"session_id": "a"})
    text = world.client.get("/metrics").text

    assert "rolecall_register_known 1\n" in text
    assert 'rolecall_workers{role="worker",state="healthy"} 1\n' in text
    assert 'rolecall_role_slots{role="gpu-worker"} 2\n' in text
    assert text.count("# TYPE") == text.count("# HELP") == 7

    world.take_away("redis", monkeypatch)
    assert "rolecall_register_known 0\n" in world.client.get("/metrics").text

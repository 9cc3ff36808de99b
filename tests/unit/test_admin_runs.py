"""Runs over HTTP: shapes, statuses, refusals."""

from __future__ import annotations

import pytest

from app.models.event import NewEvent
from app.models.run import RunStatus
from tests.unit.admin_world import CANARY, World, world

__all__ = ["world"]


def test_a_run_is_accepted_with_its_place_and_the_place_of_its_events(world: World) -> None:
    world.ready()

    answer = world.client.post("/api/v1/deployments/hello/runs", json={"input": {"name": "Ada"}})

    assert answer.status_code == 202
    run = answer.json
    assert answer.headers["Location"] == f"/api/v1/runs/{run['runId']}"
    assert run["events"] == f"/api/v1/runs/{run['runId']}/events"
    assert (run["status"], run["input"], run["deploymentId"]) == ("queued", {"name": "Ada"}, "hello")
    shown = world.client.get(answer.headers["Location"]).json
    assert shown["runId"] == run["runId"]
    assert shown["explain"]["picked"] == run["variant"]


def test_a_start_without_a_body_has_an_empty_input(world: World) -> None:
    world.ready()

    answer = world.client.post("/api/v1/deployments/hello/runs")

    assert (answer.status_code, answer.json["input"]) == (202, {})


def test_an_idempotency_key_gives_the_first_run_again_and_422_for_another_body(world: World) -> None:
    world.ready()
    first = world.start(input={"n": 1}, idempotencyKey="k")

    again = world.start(input={"n": 1}, idempotencyKey="k")
    other = world.client.post("/api/v1/deployments/hello/runs", json={"input": {"n": 2}, "idempotencyKey": "k"})

    assert again["runId"] == first["runId"]
    assert (other.status_code, other.json["code"]) == (422, "idempotency_mismatch")
    assert other.json["runId"] == first["runId"]


def test_a_full_queue_is_429(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.ready()
    monkeypatch.setattr(world.services.runs._gate, "_depth_cap", 0)

    answer = world.client.post("/api/v1/deployments/hello/runs", json={})

    assert (answer.status_code, answer.json["code"]) == (429, "role_depth_cap")
    assert int(answer.headers["Retry-After"]) > 0


@pytest.mark.parametrize(
    ("body", "at"),
    [
        ({"inputs": {}}, "/inputs"),
        ({"input": []}, "/input"),
        ({"priority": 10}, "/priority"),
        ({"expiresAt": "tomorrow"}, "/expiresAt"),
        ({"idempotencyKey": ""}, "/idempotencyKey"),
    ],
)
def test_a_wrong_start_is_refused_at_its_place(world: World, body: dict[str, object], at: str) -> None:
    world.ready()

    answer = world.client.post("/api/v1/deployments/hello/runs", json=body)

    assert answer.status_code == 400
    assert at in [fault["at"] for fault in answer.json["errors"]]


def test_a_disabled_deployment_is_409(world: World) -> None:
    world.ready()
    world.deploy("off", CANARY | {"disabled": True})

    answer = world.client.post("/api/v1/deployments/off/runs", json={})

    assert (answer.status_code, answer.json["code"]) == (409, "deployment_disabled")


def test_runs_are_listed_newest_first_by_every_filter(world: World) -> None:
    world.ready()
    first = world.finished(meta={"session_id": "one"})
    second = world.start(meta={"session_id": "two"})
    world.mirror()

    def found(**filters: object) -> list[str]:
        answer = world.client.get("/api/v1/runs", query_string=filters)
        assert answer.status_code == 200, answer.text
        return [run["runId"] for run in answer.json["items"]]

    assert found() == [second["runId"], first["runId"]]
    assert found(limit=1) == [second["runId"]]
    assert found(status="completed") == [first["runId"]]
    assert found(session="two") == [second["runId"]]
    assert found(deployment="other") == []
    assert set(found(variant=first["variant"], role=first["targetRole"])) >= {first["runId"]}
    following = world.client.get("/api/v1/runs?limit=1").json["next"]
    assert found(limit=1, after=following) == [first["runId"]]


def test_waiting_for_a_run_that_has_ended_does_not_wait(world: World) -> None:
    world.ready()
    run = world.finished()

    answer = world.client.get(f"/api/v1/runs/{run['runId']}?wait=60")

    assert (answer.json["status"], answer.json["output"]) == ("completed", {"content": "Hello"})


def test_waiting_ends_when_the_time_is_over(world: World) -> None:
    world.ready()
    run = world.start()

    assert world.client.get(f"/api/v1/runs/{run['runId']}?wait=0.05").json["status"] == "queued"


def test_a_queued_run_is_cancelled_at_once_and_only_once(world: World) -> None:
    world.ready()
    run = world.start()

    answer = world.client.post(f"/api/v1/runs/{run['runId']}/cancel")
    again = world.client.post(f"/api/v1/runs/{run['runId']}/cancel", json={})

    assert (answer.status_code, answer.json["status"]) == (200, "cancelled")
    assert (again.status_code, again.json["code"]) == (409, "run_ended")


@pytest.mark.parametrize(("body", "at"), [({"force": "yes"}, "/force"), ({"hard": True}, "/hard")])
def test_a_wrong_cancel_names_the_field(world: World, body: dict[str, object], at: str) -> None:
    answer = world.client.post("/api/v1/runs/x/cancel", json=body)

    assert answer.status_code == 400
    assert [fault["at"] for fault in answer.json["errors"]] == [at]


def test_a_retry_is_a_new_run_of_the_same_input(world: World) -> None:
    world.ready()
    run = world.finished(input={"name": "Ada"})

    answer = world.client.post(f"/api/v1/runs/{run['runId']}/retry")

    assert answer.status_code == 202
    assert answer.json["retryOf"] == run["runId"]
    assert answer.json["input"] == {"name": "Ada"}
    assert answer.headers["Location"].endswith(answer.json["runId"])


def test_an_open_run_cannot_be_retried(world: World) -> None:
    world.ready()
    run = world.start()

    answer = world.client.post(f"/api/v1/runs/{run['runId']}/retry")

    assert (answer.status_code, answer.json["code"]) == (409, "run_not_ended")


def test_a_retry_takes_no_fields(world: World) -> None:
    assert world.client.post("/api/v1/runs/x/retry", json={"input": {}}).status_code == 400


def test_a_running_run_shows_its_worker_and_stops_when_asked(world: World) -> None:
    world.ready()
    run = world.start()
    world.claim(run)
    world.append(run, 1, NewEvent("node.started", "start"))

    shown = world.client.post(f"/api/v1/runs/{run['runId']}/cancel", json={"force": False}).json

    assert shown["status"] == RunStatus.RUNNING.value
    assert shown["worker"]["role"] == run["targetRole"]

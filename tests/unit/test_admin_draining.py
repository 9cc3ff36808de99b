"""Draining over HTTP and on the page of workers: what is kept, what is shown, and what is said before it is done."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.admin_world import FLOW, World, world

__all__ = ["world"]

LOST = {"deployment": "hello", "label": "canary"}


def told(world: World, role: str = "worker", instance_id: str | None = None, **changes: Any) -> bool:
    """Return what an instance hears with its next heartbeat."""
    return world.services.register.beat(world.beat(role, instance_id, **changes)).drain


def post(world: World, path: str, body: dict[str, Any] | None = None, status: int = 200) -> Any:
    answer = world.client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json


def workers(world: World) -> dict[str, Any]:
    return {row["instance_id"]: row for row in world.client.get("/admin/workers").json["workers"]}


# --- workers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ident", ["worker-b", "worker-2@host"])
def test_a_worker_is_drained_by_its_node_name_whoever_names_it(world: World, ident: str) -> None:
    world.ready()
    world.beat("worker", "worker-b", node="worker-2@host")

    answer = post(world, f"/admin/workers/{ident}/drain")

    assert answer.items() >= {"drained": True, "node": "worker-2@host", "by": "127.0.0.1"}.items()
    assert told(world, "worker", "restarted", node="worker-2@host")
    assert not told(world)
    shown = workers(world)
    assert (shown["worker-b"]["drained"], shown["worker-b"]["draining"], shown["worker-1"]["drained"]) == (
        True, False, False
    )  # fmt: skip
    assert [each["node"] for each in world.client.get("/admin/workers").json["drains"]] == ["worker-2@host"]

    assert post(world, f"/admin/workers/{ident}/undrain") == {"drained": False, "node": "worker-2@host"}
    assert not told(world, "worker", "restarted", node="worker-2@host")


def test_a_drained_worker_that_is_down_can_be_undrained_by_its_node_name(world: World) -> None:
    world.ready()
    world.services.register.drain("node", "worker-9@host", by="me")

    assert post(world, "/admin/workers/worker-9@host/undrain") == {"drained": False, "node": "worker-9@host"}
    assert post(world, "/admin/workers/worker-9@host/undrain", status=404)["code"] == "worker_not_found"


def test_a_worker_that_is_undrained_while_its_role_is_drained_is_told_so(world: World) -> None:
    world.ready()
    post(world, "/admin/roles/worker/drain", {"force": True})
    post(world, "/admin/workers/worker-1/drain")

    assert post(world, "/admin/workers/worker-1/undrain") == {"drained": True, "node": "worker@host"}
    assert told(world)


def test_nobody_drains_a_worker_that_is_not_there_or_takes_no_messages(world: World) -> None:
    world.ready()
    world.beat("admin-api", pool="")

    assert post(world, "/admin/workers/nobody/drain", {"force": True}, 404)["code"] == "worker_not_found"
    assert post(world, "/admin/workers/admin-api-1/drain", {"force": True}, 409)["code"] == "not_a_worker"
    assert world.services.register.drains() == []


# --- roles ------------------------------------------------------------------------------------------------------------


def test_a_role_is_drained_though_nobody_answers_for_it(world: World) -> None:
    world.ready()

    assert post(world, "/admin/roles/night-shift/drain").items() >= {"drained": True, "role": "night-shift"}.items()

    assert told(world, "night-shift", "late")
    roles = world.client.get("/admin/roles").json["roles"]
    assert (roles["night-shift"]["drained"], roles["worker"]["drained"]) == (True, False)
    assert post(world, "/admin/roles/night-shift/undrain") == {"drained": False, "role": "night-shift"}
    assert post(world, "/admin/roles/night-shift/undrain") == {"drained": False, "role": "night-shift"}


def test_a_role_whose_workers_all_drain_says_so(world: World) -> None:
    world.ready()
    world.beat("worker", draining=True)
    world.beat("worker", "worker-2", healthy=False)

    roles = world.client.get("/admin/roles").json["roles"]

    assert (roles["worker"]["draining"], roles["gpu-worker"]["draining"]) == (True, False)


@pytest.mark.parametrize("path", ["/admin/roles/GPU%20Worker/drain", "/admin/roles/celery/undrain"])
def test_what_is_no_role_is_refused_with_the_rule(world: World, path: str) -> None:
    assert post(world, path, status=400)["code"] == "bad_request"


@pytest.mark.parametrize("body", [{"force": 1}, {"froce": True}])
@pytest.mark.parametrize("path", ["/admin/roles/worker/drain", "/admin/workers/worker-1/drain"])
def test_a_body_that_is_not_understood_drains_nobody(world: World, path: str, body: dict[str, Any]) -> None:
    world.ready()

    assert post(world, path, body, 400)["code"] == "bad_request"
    assert world.services.register.drains() == []


# --- the last of a role -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/admin/roles/gpu-worker/drain", "/admin/workers/gpu-worker-1/drain"])
def test_what_would_lose_its_last_worker_is_said_before_and_done_by_force(world: World, path: str) -> None:
    world.ready()

    problem = post(world, path, status=409)
    assert (problem["code"], problem["variants"]) == ("last_of_role", [LOST])
    assert "'canary' of 'hello'" in problem["detail"]
    assert post(world, path, {"force": False}, 409) == problem
    assert not told(world, "gpu-worker")

    assert post(world, path, {"force": True})["drained"]
    assert told(world, "gpu-worker")


def test_a_worker_with_a_colleague_is_not_the_last_and_his_drain_makes_the_other_the_last(world: World) -> None:
    world.ready()
    world.beat("gpu-worker", "gpu-worker-2", node="gpu-worker-2@host")

    post(world, "/admin/workers/gpu-worker-1/drain")

    # Neither has heard of it yet.
    assert post(world, "/admin/workers/gpu-worker-2/drain", status=409)["variants"] == [LOST]
    assert post(world, "/admin/workers/gpu-worker-1/drain")["drained"]


@pytest.mark.parametrize("colleague", [{"healthy": False}, {"draining": True}, {"nodes": ()}, {"executes": False}])
def test_a_colleague_who_cannot_run_it_is_no_help(world: World, colleague: dict[str, Any]) -> None:
    world.ready()
    world.beat("gpu-worker", "gpu-worker-2", node="gpu-worker-2@host", **colleague)

    assert post(world, "/admin/workers/gpu-worker-1/drain", status=409)["variants"] == [LOST]


def test_a_variant_that_may_run_elsewhere_or_could_not_run_anyway_loses_nothing(world: World) -> None:
    world.ready()
    variants = [
        {"label": "both", "flowId": "greet", "weight": 1, "targetRoles": ["gpu-worker", "worker"]},
        {"label": "anywhere", "flowId": "greet", "weight": 1},
        {"label": "dead", "flowId": "greet", "weight": 1, "targetRoles": ["nobody"]},
    ]
    world.deploy("others", {"variants": variants})

    assert post(world, "/admin/roles/gpu-worker/drain", status=409)["variants"] == [LOST]
    post(world, "/admin/roles/gpu-worker/drain", {"force": True})
    lost = post(world, "/admin/roles/worker/drain", status=409)["variants"]
    assert [each["label"] for each in lost] == ["stable", "both", "anywhere"]


def test_every_page_of_deployments_is_looked_at(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("admin.draining.PAGE", 2)
    world.ready()
    pinned = {"variants": [{"label": "only", "flowId": "greet", "weight": 1, "targetRoles": ["gpu-worker"]}]}
    for number in range(12):
        world.deploy(f"x{number:02}", pinned)

    problem = post(world, "/admin/roles/gpu-worker/drain", status=409)

    assert len(problem["variants"]) == 13
    assert "3 more" in problem["detail"]


def test_a_variant_without_a_version_is_passed_over(world: World) -> None:
    for role in ("worker", "gpu-worker"):
        world.beat(role)
    world.import_flow(FLOW, publish=False)
    world.deploy()

    assert post(world, "/admin/roles/gpu-worker/drain")["drained"]


def test_force_needs_nobody_to_know_who_is_alive_or_deployed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.ready()
    world.take_away("mongo", monkeypatch)

    assert post(world, "/admin/roles/gpu-worker/drain", status=503)["code"] == "mongo_unavailable"
    assert post(world, "/admin/roles/gpu-worker/drain", {"force": True})["drained"]
    world.take_away("redis", monkeypatch)
    assert post(world, "/admin/workers/worker-1/drain", status=503)["code"] == "register_unknown"


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_has_a_button_for_each_worker_and_role_that_can_be_drained(world: World) -> None:
    world.ready()
    world.beat("admin-api", pool="")
    page = world.client.get("/workers").text
    assert 'data-post="/admin/roles/gpu-worker/drain" aria-label="Drain role gpu-worker"' in page
    assert 'data-post="/admin/workers/worker-1/drain" aria-label="Drain worker worker@host"' in page
    assert "/admin/workers/admin-api-1/drain" not in page
    assert "/admin/roles/admin-api/drain" not in page

    post(world, "/admin/roles/gpu-worker/drain", {"force": True})
    post(world, "/admin/workers/worker-1/drain", {"force": True})
    page = world.client.get("/workers").text
    assert 'data-post="/admin/roles/gpu-worker/undrain"' in page
    assert 'data-post="/admin/workers/worker-1/undrain"' in page
    assert "The whole role is drained" in page


def test_a_drained_role_that_nobody_answers_for_is_on_the_page(world: World) -> None:
    world.beat("worker")
    world.services.register.drain("role", "night-shift", by="me")

    assert 'data-post="/admin/roles/night-shift/undrain"' in world.client.get("/workers").text

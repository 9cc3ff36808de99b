"""What differs between versions of a flow, who uses it, and who can run it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from app.roles import RoleFault
from tests.unit.admin_world import CANARY, FLOW, World, world

__all__ = ["world"]


def second_version() -> dict[str, Any]:
    document = copy.deepcopy(FLOW)
    greet = document["flows"]["greet"]
    greet["nodes"]["say"]["settings"]["template"] = "Hi {{.name}}"
    greet["nodes"]["end"] = {"kind": "terminal"}
    greet["edges"].append({"from": "say", "to": "end"})
    return document


def test_two_versions_are_compared_place_by_place(world: World) -> None:
    first = world.import_flow()["versionId"]
    second = world.import_flow(second_version(), publish=False)["versionId"]

    answer = world.client.get(f"/api/v1/flows/greet/versions/{first}/diff/{second}").json

    assert {name: answer[name] for name in ("flowId", "from", "to")} == {
        "flowId": "greet",
        "from": {"versionId": first, "number": 1},
        "to": {"versionId": second, "number": 2},
    }
    assert answer["changes"] == [
        {"at": "/flows/greet/nodes/say/settings/template", "change": "changed", "what": "setting",
         "before": "Hello {{.name}}", "after": "Hi {{.name}}"},
        {"at": "/flows/greet/nodes/end", "change": "added", "what": "node", "after": {"kind": "terminal"}},
        {"at": "/flows/greet/edges/1", "change": "added", "what": "edge", "after": {"from": "say", "to": "end"}},
    ]  # fmt: skip
    assert world.client.get(f"/api/v1/flows/greet/versions/{first}/diff/{first}").json["changes"] == []


@pytest.mark.parametrize("pair", ["none/diff/{}", "{}/diff/none"])
def test_a_version_that_is_not_there_cannot_be_compared(world: World, pair: str) -> None:
    known = world.import_flow()["versionId"]

    answer = world.client.get(f"/api/v1/flows/greet/versions/{pair.format(known)}")

    assert (answer.status_code, answer.json["code"]) == (404, "version_not_found")


def test_deployments_of_a_flow_are_listed_with_their_variants_of_it(world: World) -> None:
    version = world.import_flow()["versionId"]
    world.import_flow(FLOW | {"flows": {"other": FLOW["flows"]["greet"]}})  # type: ignore[index]
    pinned = {"label": "old", "flowId": "greet", "weight": 1, "versionId": version}
    world.deploy("both", {"disabled": True, "variants": [pinned, {"label": "o", "flowId": "other", "weight": 1}]})
    world.deploy("canary", CANARY)
    world.deploy("neither", {"variants": [{"label": "o", "flowId": "other", "weight": 1}]})

    answer = world.client.get("/api/v1/flows/greet/deployments").json

    assert [(one["id"], one["disabled"]) for one in answer["items"]] == [("both", True), ("canary", False)]
    assert [(variant["label"], variant["versionId"]) for variant in answer["items"][0]["variants"]] == [
        ("old", version)
    ]
    assert [variant["label"] for variant in answer["items"][1]["variants"]] == ["stable", "canary"]
    assert "versionId" not in answer["items"][1]["variants"][0]
    first = world.client.get("/api/v1/flows/greet/deployments?limit=1").json
    second = world.client.get(f"/api/v1/flows/greet/deployments?limit=1&after={first['next']}").json
    assert ([one["id"] for one in second["items"]], second["next"]) == (["canary"], None)


def test_each_living_role_can_run_a_flow_or_it_is_said_why_not(world: World) -> None:
    version = world.import_flow()["versionId"]
    world.beat("worker")
    world.beat("sick", healthy=False)
    world.beat("dispatcher")
    world.beat("leaving", draining=True)
    world.beat("bare", nodes=("core/log",))

    answer = world.client.get("/api/v1/flows/greet/roles").json

    assert (answer["flowId"], answer["versionId"]) == ("greet", version)
    assert answer["needs"] == [["core/template-render", "say"]]
    faults: dict[str, RoleFault] = {
        "sick": "unhealthy",
        "dispatcher": "does_not_execute",
        "leaving": "draining",
        "bare": "missing_handler",
    }
    assert answer["roles"] == {
        role: {"eligible": False, "fault": fault} for role, fault in faults.items()
    } | {"worker": {"eligible": True}}  # fmt: skip


def test_roles_may_be_asked_of_a_version_that_is_not_published(world: World) -> None:
    world.beat("worker")
    version = world.import_flow(publish=False)["versionId"]

    unpublished = world.client.get("/api/v1/flows/greet/roles")
    named = world.client.get(f"/api/v1/flows/greet/roles?version={version}")

    assert (unpublished.status_code, unpublished.json["code"]) == (409, "flow_not_published")
    assert named.json["roles"] == {"worker": {"eligible": True}}


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("none/roles", "flow_not_found"),
        ("none/deployments", "flow_not_found"),
        ("greet/roles?version=none", "version_not_found"),
    ],
)
def test_what_is_not_there_is_404(world: World, path: str, code: str) -> None:
    world.import_flow()
    answer = world.client.get(f"/api/v1/flows/{path}")
    assert (answer.status_code, answer.json["code"]) == (404, code)


def test_nobody_says_who_can_run_a_flow_while_nobody_knows_who_lives(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.import_flow()
    world.take_away("redis", monkeypatch)
    answer = world.client.get("/api/v1/flows/greet/roles")
    assert (answer.status_code, answer.json["code"]) == (503, "register_unknown")

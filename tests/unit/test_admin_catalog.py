"""Flows, deployments and resolving over HTTP: shapes, statuses, refusals."""

from __future__ import annotations

import pytest

from tests.unit.admin_world import CANARY, FLOW, World, world

__all__ = ["world"]

YAML_FLOW = """
flowdsl: "1.0"
info: {title: Echo, version: 1.0.0}
flows:
  echo:
    entrypoints: [start]
    nodes:
      start: {operationId: start, kind: source, x-action-ref: core/source}
    edges: []
"""


# --- flows ------------------------------------------------------------------------------------------------------------


def test_importing_a_document_answers_201_and_the_same_document_again_200(world: World) -> None:
    first = world.client.post("/api/v1/flows/import?publish=true", json=FLOW)
    again = world.client.post("/api/v1/flows/import?publish=true", json=FLOW)

    assert (first.status_code, again.status_code) == (201, 200)
    (flow,) = first.json["flows"]
    assert set(flow) == {"flowId", "versionId", "number", "published", "warnings"}
    assert (flow["flowId"], flow["number"], flow["published"]) == ("greet", 1, True)
    assert again.json == first.json


@pytest.mark.parametrize("kind", ["application/yaml", "application/x-yaml", "text/yaml"])
def test_a_document_may_be_yaml(world: World, kind: str) -> None:
    answer = world.client.post("/api/v1/flows/import", data=YAML_FLOW, content_type=kind)

    assert answer.status_code == 201
    assert answer.json["flows"][0]["flowId"] == "echo"
    assert answer.json["flows"][0]["published"] is False


def test_a_document_of_an_unknown_kind_is_refused_with_the_kinds_that_are_right(world: World) -> None:
    answer = world.client.post("/api/v1/flows/import", data=b"flowdsl", content_type="text/plain")

    assert answer.status_code == 415
    assert "application/json or application/yaml" in answer.json["detail"]


def test_a_handler_that_a_living_worker_announces_needs_no_warning(world: World) -> None:
    document = FLOW | {
        "flows": {"odd": {"nodes": {"n": {"operationId": "n", "kind": "transform", "x-action-ref": "their/own"}}}}
    }
    before = world.import_flow(document)
    world.beat("worker", nodes=("their/own",))
    after = world.import_flow(document)

    assert any("their/own" in warning["message"] for warning in before["warnings"])
    assert not any("their/own" in warning["message"] for warning in after["warnings"])


def test_a_document_that_can_never_run_is_refused_with_every_place(world: World) -> None:
    nodes = {"first": {"operationId": "o", "kind": "odd"}}
    document = FLOW | {"flows": {"bad": {"nodes": nodes, "edges": [{"from": "first", "to": "frist"}]}}}

    answer = world.client.post("/api/v1/flows/import", json=document)

    assert (answer.status_code, answer.json["code"]) == (400, "invalid_document")
    [fault] = answer.json["errors"]
    assert (fault["at"], fault["severity"]) == ("/flows/bad/edges/0/to", "error")
    assert fault["mend"] == "did you mean 'first'?"
    assert {warning["severity"] for warning in answer.json["warnings"]} == {"warning"}
    assert "/flows/bad/nodes/first/kind" in [warning["at"] for warning in answer.json["warnings"]]


def test_flows_and_versions_can_be_looked_up_and_published(world: World) -> None:
    first = world.import_flow()
    second = world.import_flow(FLOW | {"info": {"title": "Greeting", "version": "2.0.0"}}, publish=False)

    assert [flow["flowId"] for flow in world.client.get("/api/v1/flows").json["items"]] == ["greet"]
    assert world.client.get("/api/v1/flows/greet").json["publishedVersionId"] == first["versionId"]
    versions = world.client.get("/api/v1/flows/greet/versions").json
    assert [version["number"] for version in versions["items"]] == [2, 1]
    assert "document" not in versions["items"][0]
    shown = world.client.get(f"/api/v1/flows/greet/versions/{second['versionId']}").json
    assert shown["document"]["info"]["version"] == "2.0.0"

    published = world.client.post("/api/v1/flows/greet/publish", json={"versionId": second["versionId"]})

    assert published.json["publishedVersionId"] == second["versionId"]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/api/v1/flows/none", "flow_not_found"),
        ("/api/v1/flows/none/versions", "flow_not_found"),
        ("/api/v1/flows/greet/versions/none", "version_not_found"),
        ("/api/v1/deployments/none", "deployment_not_found"),
        ("/api/v1/runs/none", "run_not_found"),
        ("/api/v1/runs/none/events", "run_not_found"),
    ],
)
def test_what_is_not_there_is_404_with_its_kind(world: World, path: str, code: str) -> None:
    answer = world.client.get(path)

    assert (answer.status_code, answer.json["code"]) == (404, code)
    assert "none" in answer.json["detail"]


@pytest.mark.parametrize(
    ("body", "at"), [({}, "/versionId"), ({"versionId": 3}, "/versionId"), ({"versionID": "x"}, "/versionID")]
)
def test_a_wrong_publication_names_the_field(world: World, body: dict[str, object], at: str) -> None:
    answer = world.client.post("/api/v1/flows/greet/publish", json=body)

    assert answer.status_code == 400
    assert at in [fault["at"] for fault in answer.json["errors"]]


# --- deployments ------------------------------------------------------------------------------------------------------


def test_a_deployment_is_created_replaced_by_its_rev_and_deleted(world: World) -> None:
    world.import_flow()
    created = world.client.put("/api/v1/deployments/hello", json=CANARY)
    replaced = world.client.put("/api/v1/deployments/hello", json=created.json | {"description": "new"})

    assert (created.status_code, replaced.status_code) == (201, 200)
    assert (created.json["rev"], replaced.json["rev"]) == (1, 2)
    assert replaced.json["variants"][1]["targetRoles"] == ["gpu-worker"]
    assert world.client.get("/api/v1/deployments").json["items"] == [replaced.json]

    stale = world.client.put("/api/v1/deployments/hello", json=created.json)
    assert (stale.status_code, stale.json["code"], stale.json["rev"]) == (409, "rev_conflict", 2)

    assert world.client.delete("/api/v1/deployments/hello").status_code == 204
    assert world.client.get("/api/v1/deployments/hello").status_code == 404
    assert world.client.delete("/api/v1/deployments/hello").status_code == 404


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ({"weight": True}, "/variants/0/weight"),
        ({"weight": 1.5}, "/variants/0/weight"),
        ({"weight": -1}, "/variants/0/weight"),
        ({"weight": 1_000_001}, "/variants/0/weight"),
        ({"targetRoles": ["GPU Worker"]}, "/variants/0/targetRoles/0"),
        ({"targetRoles": ["dispatcher"]}, "/variants/0/targetRoles/0"),
        ({"colour": "red"}, "/variants/0/colour"),
    ],
)
def test_a_wrong_variant_is_refused_at_its_place(world: World, change: dict[str, object], at: str) -> None:
    variant = {"label": "a", "flowId": "greet", "weight": 1} | change

    answer = world.client.put("/api/v1/deployments/hello", json={"variants": [variant]})

    assert answer.status_code == 400
    assert at in [fault["at"] for fault in answer.json["errors"]]


def test_lists_go_on_where_they_stopped(world: World) -> None:
    world.import_flow()
    for ident in "abc":
        world.deploy(ident)

    first = world.client.get("/api/v1/deployments?limit=2").json
    second = world.client.get("/api/v1/deployments", query_string={"limit": 2, "after": first["next"]}).json

    assert [each["id"] for each in first["items"] + second["items"]] == ["a", "b", "c"]
    assert second["next"] is None


# --- resolve ----------------------------------------------------------------------------------------------------------


def test_resolve_says_where_a_run_would_go_and_starts_none(world: World) -> None:
    world.ready()

    answer = world.client.post("/api/v1/deployments/hello/resolve", json={"meta": {"session_id": "s"}})

    assert answer.status_code == 200
    assert set(answer.json) == {"variant", "flowId", "versionId", "targetRole", "explain"}
    assert answer.json["explain"]["by"] == "sticky"
    world.mirror()
    assert world.client.get("/api/v1/runs").json["items"] == []


def test_resolve_answers_what_if(world: World) -> None:
    world.import_flow()
    world.deploy()

    answer = world.client.post("/api/v1/deployments/hello/resolve", json={"healthyRoles": ["gpu-worker"]})

    assert (answer.json["variant"], answer.json["targetRole"]) == ("canary", "gpu-worker")


def test_nobody_healthy_is_503_in_the_seed_s_words_with_the_reasons(world: World) -> None:
    world.import_flow()
    world.deploy()

    for path in ("resolve", "runs"):
        answer = world.client.post(f"/api/v1/deployments/hello/{path}", json={})

        assert (answer.status_code, answer.json["code"]) == (503, "no_healthy_variant")
        assert "no variants with healthy target roles" in answer.json["detail"]
        assert int(answer.headers["Retry-After"]) > 0
        assert [each["reasons"] for each in answer.json["explain"]["candidates"]] == [["no_workers"]] * 2

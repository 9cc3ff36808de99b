"""What the admin app refuses whatever the call, and how it says so."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from admin.inputs import parse_json
from admin.problems import STATUSES, problem_of
from app import errors
from app.models.json_value import dumps, find_fault
from tests.unit.admin_world import World, world

__all__ = ["world"]

START = "/api/v1/deployments/hello/runs"


# --- bodies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"input": ', "line 1, column 11"),
        (b'{\n  "input": {},\n}', "line 3, column 1"),
        (b" ", "line 1, column 2"),
        (b'{"input": {"x": NaN}}', "NaN"),
        (b'{"input": {"x": -Infinity}}', "-Infinity"),
        (b'{"input": {"x": 1e999}}', "/input/x"),
        (b'{"input": {"x": 9007199254740993}}', "2**53"),
        (b'{"input": {"x": ' + b"9" * 5000 + b"}}", "digits"),
        (b'{"input": {}, "input": {}}', "'input' twice"),
        (b'{"input": {"a": 1, "a": 2}}', "'a' twice"),
        (b'{"input": {"x": "\\ud800"}}', "surrogate"),
        (b'{"input": {"x": "\xff"}}', "UTF-8"),
        (b"[" * 100_000, "deep"),
        (b'{"input":' + b"[" * 150 + b"]" * 150 + b"}", "deep"),
        (b"[]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
    ],
    ids=range(16),
)
def test_a_body_that_is_not_strict_json_is_refused_with_the_place(world: World, body: bytes, said: str) -> None:
    answer = world.client.post(START, data=body, content_type="application/json")

    assert (answer.status_code, answer.json["code"]) == (400, "bad_request")
    assert said in answer.json["detail"]


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/yaml", None]
)
@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", START), ("PUT", "/api/v1/deployments/hello"), ("POST", "/api/v1/runs/x/cancel"),
     ("POST", "/api/v1/runs/x/retry"), ("POST", "/api/v1/flows/greet/publish")],
)  # fmt: skip
def test_only_json_is_taken(world: World, method: str, path: str, kind: str | None) -> None:
    answer = world.client.open(path, method=method, data=b"{}", content_type=kind)

    assert (answer.status_code, answer.json["code"]) == (415, "unsupported_media_type")
    assert "application/json" in answer.json["detail"]


def test_a_body_over_the_cap_is_413(world: World) -> None:
    cap = world.services.settings.input_max_bytes

    answer = world.client.post(START, data=b" " * (cap + 70_000), content_type="application/json")

    assert (answer.status_code, answer.json["code"]) == (413, "too_large")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
@settings(max_examples=150, deadline=None)
def test_what_survives_as_json_is_read_unchanged(value: Any) -> None:
    if find_fault(value) is None:
        assert parse_json(dumps(value).encode()) == value


@given(st.binary(max_size=60) | st.text(alphabet='[]{}",:0123456789.eE-+\\ud8nulltruefas', max_size=40).map(str.encode))
@settings(max_examples=300, deadline=None)
def test_no_body_breaks_the_reader(body: bytes) -> None:
    with contextlib.suppress(errors.BadRequest):
        assert find_fault(parse_json(body)) is None


# --- query parameters --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/api/v1/runs?limit=0", "limit"),
        ("/api/v1/runs?limit=501", "limit"),
        ("/api/v1/runs?limit=ten", "limit"),
        ("/api/v1/runs?limit=%D9%A3", "limit"),
        ("/api/v1/runs?limit=5&limit=6", "limit"),
        ("/api/v1/runs?status=done", "status"),
        ("/api/v1/runs?state=failed", "state"),
        ("/api/v1/runs?role=", "role"),
        ("/api/v1/runs?after=nonsense", "after"),
        ("/api/v1/runs/x?wait=61", "wait"),
        ("/api/v1/runs/x?wait=-1", "wait"),
        ("/api/v1/runs/x?wait=nan", "wait"),
        ("/api/v1/runs/x?channel=all", "channel"),
        ("/api/v1/flows?limit=1e3", "limit"),
        ("/api/v1/deployments?afer=x", "afer"),
        ("/api/v1/counters/x?y=1", "y"),
        ("/admin/workers?role=x", "role"),
        ("/readyz?verbose=1", "verbose"),
    ],
)
def test_a_wrong_query_parameter_is_refused_by_name(world: World, path: str, name: str) -> None:
    answer = world.client.get(path)

    assert answer.status_code == 400
    assert name in answer.json["detail"]


def test_a_wrong_flag_is_refused(world: World) -> None:
    answer = world.client.post("/api/v1/flows/import?publish=yes", json={})

    assert (answer.status_code, answer.json["errors"][0]["at"]) == (400, "?publish")


# --- other sites -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://evil.example"},
     {"Origin": "null"}, {"Origin": "http://localhost:81"}],
)  # fmt: skip
def test_a_change_that_a_page_of_another_site_sends_is_refused(world: World, headers: dict[str, str]) -> None:
    world.ready()
    run = world.start()

    answer = world.client.post(f"/api/v1/runs/{run['runId']}/cancel", headers=headers)

    assert (answer.status_code, answer.json["code"]) == (403, "forbidden")
    assert world.client.get(f"/api/v1/runs/{run['runId']}").json["status"] == "queued"


@pytest.mark.parametrize(
    "headers", [{}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {"Origin": "http://localhost"}]
)
def test_our_own_pages_and_programs_may_change_things(world: World, headers: dict[str, str]) -> None:
    world.ready()

    assert world.client.post(START, json={}, headers=headers).status_code == 202


def test_every_answer_forbids_what_pages_do_not_need(world: World) -> None:
    for path in ("/", "/api/v1/runs", "/nothing"):
        headers = world.client.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"


# --- problems ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/v1/nothing", 404, "no_such_page"),
        ("GET", "/admin/nothing", 404, "no_such_page"),
        ("DELETE", "/api/v1/runs", 405, "method_not_allowed"),
        ("GET", "/api/v1/flows/x/publish", 405, "method_not_allowed"),
    ],
)
def test_flask_s_own_refusals_are_problems_too(world: World, method: str, path: str, status: int, code: str) -> None:
    answer = world.client.open(path, method=method)

    assert answer.content_type == "application/problem+json"
    assert (answer.status_code, answer.json["status"], answer.json["code"]) == (status, status, code)
    assert answer.json["type"] == f"urn:rolecall:problem:{code}"
    assert {"title", "detail"} <= set(answer.json)
    assert ("Allow" in answer.headers) == (status == 405)


def test_an_unexpected_error_is_logged_and_not_told(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr(world.services.runs, "get", fail)

    for path in ("/api/v1/runs/x", "/runs/x"):
        with caplog.at_level(logging.ERROR):
            answer = world.client.get(path)
        assert answer.status_code == 500
        assert "hunter2" not in answer.text
        assert "Traceback" not in answer.text
        assert "hunter2" in caplog.text


def _kinds(root: type[errors.RolecallError]) -> list[type[errors.RolecallError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in _kinds(child))]


EXAMPLES: dict[type[errors.RolecallError], errors.RolecallError] = {
    errors.RevConflict: errors.RevConflict("d", current=2, given=1),
    errors.LastOfRole: errors.LastOfRole("role 'worker'", [("d", "stable")]),
    errors.IdempotencyMismatch: errors.IdempotencyMismatch("d", "k", "r"),
    errors.TooManyQueued: errors.TooManyQueued("worker", 5, 5),
    errors.NoHealthyVariant: errors.NoHealthyVariant("none", explain={"candidates": []}),
    errors.AcceptanceUnknown: errors.AcceptanceUnknown("lost", run_id="r"),
    errors.ServerUnavailable: errors.ServerUnavailable("redis", "gone"),
    errors.OutOfMemory: errors.OutOfMemory("full"),
}

EXPECTED = {
    errors.RolecallError: 500,
    errors.SettingError: 500,
    errors.BadRequest: 400,
    errors.InvalidDocument: 400,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.RevConflict: 409,
    errors.LastOfRole: 409,
    errors.IdempotencyMismatch: 422,
    errors.TooManyQueued: 429,
}


@pytest.mark.parametrize("kind", [kind for kind in _kinds(errors.RolecallError) if kind.__module__ == "app.errors"])
def test_every_error_has_its_status_from_the_one_table(kind: type[errors.RolecallError]) -> None:
    error = EXAMPLES.get(kind) or kind("what went wrong")

    problem = problem_of(error)

    assert problem.status == EXPECTED.get(kind, 503)
    assert problem.to_wire().items() >= ({"code": error.code, "detail": str(error)} | error.extra()).items()
    assert ("Retry-After" in problem.headers) == (problem.status in (429, 503))
    assert set(STATUSES) <= set(_kinds(errors.RolecallError))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.sampled_from(["id", "name", "variants", "stickyBy", "labels", "disabled", "rev", "x"]), JSON, max_size=5
    )
)
def test_no_deployment_body_is_an_internal_error(world: World, body: dict[str, Any]) -> None:
    if find_fault(body) is None:
        answer = world.client.put("/api/v1/deployments/hello", data=dumps(body), content_type="application/json")
        assert answer.status_code == 400

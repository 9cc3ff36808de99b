"""The boundary models: what they take, what they refuse, and in which words."""

from __future__ import annotations

import datetime
import json
import math
from typing import Any

import pytest
from bson import ObjectId
from hypothesis import given, settings
from hypothesis import strategies as st

from app.clock import from_rfc3339, to_rfc3339
from app.errors import BadRequest
from app.models.base import parse
from app.models.deployment import MAX_VARIANTS, MAX_WEIGHT, Deployment, DeploymentIn
from app.models.event import START, TERMINAL, Event, Place
from app.models.flow import Flow, FlowVersion, version_id_of
from app.models.heartbeat import Heartbeat, WorkerState
from app.models.json_value import MAX_DEPTH, MAX_SAFE_INTEGER, canonical, check_json, dumps, find_fault, loads
from app.models.names import IDENT_RULE, ROLE_RULE, check_ident, check_role, check_service_role
from app.models.role import Capability, RoleSummary
from app.models.run import Run, RunError, RunRequest, RunStatus, WorkerRef, read_expiry

VARIANT: dict[str, Any] = {"label": "main", "flowId": "shop", "weight": 1}
NOW = "2026-11-30T21:40:00.000Z"


def body(**variant: Any) -> dict[str, Any]:
    return {"variants": [VARIANT | variant]}


def refusal(model: type[DeploymentIn] | type[RunRequest], value: Any) -> tuple[str, str]:
    """Return place and words of the one fault that ``value`` is refused for."""
    with pytest.raises(BadRequest) as refused:
        parse(model, value)
    (fault,) = refused.value.faults
    return fault.at, fault.message


# --- names -----------------------------------------------------------------------------------------------------------

NO_NAMES = [
    "", " ", "a b", "a,b", "a:b", "a\n", "\na", "a\nb", "a\r", "a\x00", "é", "ａ", "-a", ".a", "_a", "a/b", "a*",
    "a{b}", "a" * 300, "\ud800", "a\u2028", "١",
]  # fmt: skip


@pytest.mark.parametrize("role", ["a", "0", "gpu-worker", "a.b_c-d", "a" * 64, "api", "admin-api", "celer", "pidbox"])
def test_a_role_of_the_grammar_is_taken(role: str) -> None:
    assert check_role(role) == role
    assert check_service_role(role) == role


@pytest.mark.parametrize("role", [*NO_NAMES, "GPU", "aB", "a" * 65])
def test_any_other_role_is_refused_with_the_rule(role: str) -> None:
    for check in (check_role, check_service_role):
        with pytest.raises(ValueError, match="is not a role") as refused:
            check(role)
        assert ROLE_RULE in str(refused.value)
        assert len(str(refused.value)) < 300


@pytest.mark.parametrize("role", ["celery", "celery.x", "celeryd", "unacked", "unacked_index", "a.pidbox"])
def test_a_name_that_celery_uses_is_reserved(role: str) -> None:
    for check in (check_role, check_service_role):
        with pytest.raises(ValueError, match=r"reserved: names beginning with celery or unacked or ending in \.pidbox"):
            check(role)


def test_a_process_may_be_a_dispatcher_but_no_variant_may_name_it() -> None:
    assert check_service_role("dispatcher") == "dispatcher"
    with pytest.raises(ValueError, match="reserved: dispatchers run no flows"):
        check_role("dispatcher")


@pytest.mark.parametrize("ident", ["a", "A", "0", "Shop.v2_final-1", "a" * 128, "celery", "dispatcher"])
def test_an_id_of_the_grammar_is_taken(ident: str) -> None:
    assert check_ident(ident) == ident


@pytest.mark.parametrize("ident", [*NO_NAMES, "a" * 129])
def test_any_other_id_is_refused_with_the_rule(ident: str) -> None:
    with pytest.raises(ValueError, match="is not an id") as refused:
        check_ident(ident)
    assert IDENT_RULE in str(refused.value)


# --- deployments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [0, 1, MAX_WEIGHT])
def test_a_whole_weight_in_range_is_taken(weight: int) -> None:
    assert parse(DeploymentIn, body(weight=weight)).variants[0].weight == weight


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (True, "must be a whole number, not a boolean"),
        (False, "must be a whole number, not a boolean"),
        (1.0, "must be a whole number, not 1.0"),
        (0.5, "must be a whole number, not 0.5"),
        (math.nan, "must be a whole number, not nan"),
        (math.inf, "must be a whole number, not inf"),
        (-1, "must be at least 0, not -1"),
        (-(10**400), "must be at least 0, not -1000"),
        (MAX_WEIGHT + 1, "must be at most 1,000,000, not 1000001"),
        (10**400, "must be at most 1,000,000, not 1000"),
        ("1", "must be a whole number, not a string"),
        (None, "must be a whole number, not null"),
        ([1], "must be a whole number, not a list"),
    ],
)
def test_any_other_weight_is_refused(weight: Any, words: str) -> None:
    at, message = refusal(DeploymentIn, body(weight=weight))
    assert at == "/variants/0/weight"
    assert message.startswith(words)
    assert len(message) < 200


@pytest.mark.parametrize(
    ("value", "at", "words"),
    [
        (body(label=""), "/variants/0/label", "must be 1 to 128 printable characters"),
        (body(label="a\n"), "/variants/0/label", "must be 1 to 128 printable characters"),
        (body(label="a" * 129), "/variants/0/label", "must be 1 to 128 printable characters"),
        (body(label=1), "/variants/0/label", "must be a string, not a number"),
        (body(flowId="a b"), "/variants/0/flowId", "'a b' is not an id: it must be"),
        (body(versionId="-"), "/variants/0/versionId", "'-' is not an id"),
        (body(targetRoles="gpu"), "/variants/0/targetRoles", "must be a list, not a string"),
        (body(targetRoles=None), "/variants/0/targetRoles", "must be a list, not null"),
        (body(targetRoles=["gpu", "GPU"]), "/variants/0/targetRoles/1", "'GPU' is not a role"),
        (body(targetRoles=["dispatcher"]), "/variants/0/targetRoles/0", "'dispatcher' is reserved"),
        (body(targetRoles=["a", "b", "a"]), "/variants/0/targetRoles", "must name each role once; 'a' occurs twice"),
        (body(targetRoles=[f"r{n}" for n in range(33)]), "/variants/0/targetRoles", "must have at most 32 items, not"),
        (body(labels={"a/~b": 1}), "/variants/0/labels/a~1~0b", "must be a string, not a number"),
        (body(wieght=1), "/variants/0/wieght", "is not a field here"),
        (body(target_roles=["a"]), "/variants/0/target_roles", "is not a field here"),
        ({"variants": [VARIANT, VARIANT]}, "/variants", "must name each label once; 'main' occurs twice"),
        ({"variants": []}, "/variants", "must have at least 1 item, not 0"),
        ({"variants": [VARIANT] * (MAX_VARIANTS + 1)}, "/variants", "must have at most 100 items, not 101"),
        ({"variants": [1]}, "/variants/0", "must be an object, not a number"),
        ({}, "/variants", "is required"),
        (body() | {"validation": "maybe"}, "/validation", "must be 'off', 'warn' or 'strict', not 'maybe'"),
        (body() | {"stickyBy": ""}, "/stickyBy", "must have at least 1 character, not 0"),
        (body() | {"disabled": 1}, "/disabled", "must be true or false, not a number"),
        (body() | {"rev": 0}, "/rev", "must be at least 1, not 0"),
        (body() | {"rev": True}, "/rev", "must be a whole number, not a boolean"),
        (body() | {"name": "x" * 201}, "/name", "must have at most 200 characters, not 201"),
        (body() | {"name": "\ud800"}, "/name", "has a lone surrogate"),
        (body() | {"sticky_by": "user"}, "/sticky_by", "is not a field here"),
        ([], "", "must be an object, not a list"),
        (None, "", "must be an object, not null"),
        ("{}", "", "must be an object, not a string"),
    ],
)  # fmt: skip
def test_every_refusal_names_the_place_the_fault_and_what_would_be_right(value: Any, at: str, words: str) -> None:
    place, message = refusal(DeploymentIn, value)
    assert place == at
    assert message.startswith(words)


def test_every_fault_is_named_not_only_the_first() -> None:
    with pytest.raises(BadRequest) as refused:
        parse(DeploymentIn, {"variants": [VARIANT | {"weight": -1, "flowId": ""}], "rev": 0, "x": 1}, at="/body")
    assert {fault.at for fault in refused.value.faults} == {
        "/body/variants/0/weight",
        "/body/variants/0/flowId",
        "/body/rev",
        "/body/x",
    }
    assert len(refused.value.extra()["errors"]) == 4


def test_what_a_deployment_answers_can_be_sent_back() -> None:
    asked = body(targetRoles=["gpu", "api"], versionId="v1", labels={"a": "b"}) | {
        "stickyBy": "none",
        "labels": {"c": "d"},
    }
    made = Deployment.create("shop", parse(DeploymentIn, asked), rev=1, created_at=NOW, updated_at=NOW)
    again = parse(DeploymentIn, json.loads(json.dumps(made.to_wire())))
    assert Deployment.create("shop", again, rev=1, created_at=NOW, updated_at=NOW) == made
    assert made.to_wire()["variants"] == [asked["variants"][0]]
    assert made.name == "shop"


def test_fields_of_a_newer_stored_deployment_are_ignored() -> None:
    made = Deployment.create("shop", parse(DeploymentIn, body()), rev=1, created_at=NOW, updated_at=NOW)
    wire = made.to_wire() | {"newField": 1}
    wire["variants"] = [wire["variants"][0] | {"newField": {}}]
    assert Deployment.model_validate(wire) == made


@pytest.mark.parametrize(
    ("sticky_by", "meta", "found"),
    [
        ("session", {"session_id": "s"}, ("session_id", "s")),
        ("session", {"session_id": 7}, ("session_id", "7")),
        ("session", {"session_id": ""}, None),
        ("session", {"session_id": True}, None),
        ("session", {"session_id": 1.5}, None),
        ("session", {"session_id": ["s"]}, None),
        ("session", {}, None),
        ("user", {"user_id": "u", "session_id": "s"}, ("user_id", "u")),
        ("none", {"session_id": "s", "none": "n"}, None),
        ("tenant", {"tenant": "t"}, ("tenant", "t")),
    ],
)
def test_only_strings_and_integers_stick(sticky_by: str, meta: dict[str, Any], found: tuple[str, str] | None) -> None:
    asked = parse(DeploymentIn, body() | {"stickyBy": sticky_by})
    assert Deployment.create("d", asked, rev=1, created_at=NOW, updated_at=NOW).sticky_value(meta) == found


# --- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "at", "words"),
    [
        ({"input": []}, "/input", "must be an object, not a list"),
        ({"meta": None}, "/meta", "must be an object, not null"),
        ({"idempotencyKey": ""}, "/idempotencyKey", "must have at least 1 character, not 0"),
        ({"idempotencyKey": "x" * 201}, "/idempotencyKey", "must have at most 200 characters, not 201"),
        ({"idempotencyKey": "\ud800"}, "/idempotencyKey", "has a lone surrogate"),
        ({"idempotency_key": "k"}, "/idempotency_key", "is not a field here"),
        ({"priority": 10}, "/priority", "must be at most 9, not 10"),
        ({"priority": -1}, "/priority", "must be at least 0, not -1"),
        ({"priority": 1.5}, "/priority", "must be a whole number, not 1.5"),
        ({"expiresAt": 5}, "/expiresAt", "must be a string, not a number"),
        ({"deploymentId": "d"}, "/deploymentId", "is not a field here; remove it or check its spelling"),
    ],
)
def test_a_bad_run_request_is_refused_with_its_place(value: Any, at: str, words: str) -> None:
    place, message = refusal(RunRequest, value)
    assert place == at
    assert message.startswith(words)


def test_a_run_request_may_be_empty() -> None:
    request = parse(RunRequest, {})
    assert (request.input, request.meta, request.idempotency_key, request.priority) == ({}, {}, None, 0)


@pytest.mark.parametrize("text", ["2026-11-30T21:40:00", "tomorrow", "", "2026-13-01T00:00:00Z"])
def test_an_expiry_needs_a_time_with_an_offset(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_expiry(text)


def test_an_expiry_is_read_in_any_offset() -> None:
    assert read_expiry(None) is None
    assert read_expiry("2026-11-30T22:40:00+01:00") == read_expiry("2026-11-30T21:40:00Z") == 1796074800000


RUN = Run("r", "d", "main", "f", "v", "worker", 1_796_000_000_000)


def test_a_run_shows_the_fields_of_the_api_and_no_others() -> None:
    always = {
        "runId", "deploymentId", "variant", "flowId", "versionId", "targetRole", "status", "attempt", "losses", "input",
        "meta", "output", "error", "worker", "explain", "createdAt", "startedAt", "endedAt",
    }  # fmt: skip
    assert set(RUN.to_wire()) == always
    waiting = RUN.with_(waiting_for="saturated", retry_of="q", idempotency_key="secret", body_hash="h")
    assert set(waiting.to_wire()) == always | {"waitingFor", "retryOf"}


def test_a_record_of_a_run_survives_json_and_fields_of_a_newer_schema() -> None:
    run = RUN.with_(
        status=RunStatus.FAILED,
        error=RunError("PERMANENT", "no", 2, "node"),
        worker=WorkerRef("i", "n", "worker"),
        excluded=("i",),
        target_roles=("worker", "gpu"),
        started_ms=5,
    )
    assert Run.from_record(json.loads(dumps(run.to_record())) | {"newField": 1}) == run


def test_exactly_three_statuses_are_ends() -> None:
    assert {status.value for status in RunStatus if status.ended} == {"completed", "failed", "cancelled"}
    assert {f"run.{status.value}" for status in RunStatus if status.ended} == TERMINAL


# --- events, heartbeats, flows ---------------------------------------------------------------------------------------


def test_an_event_of_an_unknown_type_passes_through() -> None:
    event = Event("r", 1, 1, "some.news", 1_796_000_000_123, "n", {"text": "a\r\n\u2028\x00"})
    assert Event.from_wire(json.loads(dumps(event.to_wire())) | {"newField": 1}) == event
    assert not event.terminal
    assert set(Event("r", 1, 1, "log", 0).to_wire()) == {"run_id", "seq", "attempt", "type", "at"}
    anew = Event("r", 1, 1, "log", 0, epoch=2)
    assert anew.to_wire()["epoch"] == 2
    assert Event.from_wire(anew.to_wire()) == anew


@pytest.mark.parametrize(
    ("text", "place", "wire"),
    [
        ("0", START, 0),
        ("12", Place(12), 12),
        ("0:12", Place(12), 12),
        ("1:0", Place(0, 1), "1:0"),
        ("2:7", Place(7, 2), "2:7"),
    ],
)
def test_a_place_in_a_log_is_read_as_it_is_written(text: str, place: Place, wire: int | str) -> None:
    assert Place.parse(text) == place
    assert place.to_wire() == wire
    assert Place.parse(str(place)) == place


@pytest.mark.parametrize(
    "text", ["", ":", "1:", ":1", "-1", "1.0", " 1", "1\n", "٣", "1:2:3", str(2**53), f"{2**53}:1", "9" * 5000]
)
def test_what_is_no_place_in_a_log_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be the id of an event"):
        Place.parse(text)


def test_a_heartbeat_of_a_newer_worker_is_read_and_the_seeds_eight_fields_are_enough() -> None:
    seed = {
        "instance_id": "i", "hostname": "h", "role": "worker", "version": "1", "started_at": NOW, "healthy": True,
        "checks": {"gpu": {"healthy": True}}, "pid": 7,
    }  # fmt: skip
    heartbeat = Heartbeat.model_validate(seed | {"newField": 1})
    assert heartbeat.state is WorkerState.HEALTHY
    assert Heartbeat.model_validate(heartbeat.to_wire()) == heartbeat
    assert heartbeat.to_wire()["schema"] == 1


@pytest.mark.parametrize(
    ("healthy", "draining", "state"),
    [(True, False, "healthy"), (True, True, "draining"), (False, False, "unhealthy"), (False, True, "unhealthy")],
)
def test_an_unhealthy_worker_is_shown_as_that_even_while_it_drains(healthy: bool, draining: bool, state: str) -> None:
    seed = {"instance_id": "i", "hostname": "h", "role": "worker", "version": "1", "started_at": NOW, "pid": 7}
    heartbeat = Heartbeat.model_validate(seed | {"healthy": healthy, "draining": draining})
    assert heartbeat.state == state


def test_only_healthy_executing_workers_that_do_not_drain_have_slots_and_run_what_they_cover() -> None:
    able = Capability(healthy=True, executes=True, draining=False, nodes=frozenset({"a", "b"}))
    others = [
        Capability(healthy=healthy, executes=executes, draining=draining, nodes=able.nodes)
        for healthy, executes, draining in ((False, True, False), (True, False, False), (True, True, True))
    ]
    every = [able, *others]
    assert RoleSummary(dict.fromkeys(every, 1), dict.fromkeys(every, 4)).slots == 4
    needs = (("x", "b"), ("a",))
    assert able.runs(needs)
    assert not any(other.runs(needs) for other in others)
    assert able.runs(())
    assert not able.runs((("x", "y"),))


def test_a_version_shows_its_document_except_in_lists() -> None:
    version = FlowVersion(
        flow_id="f", version_id="v", number=1, content_hash="h", document={"a": 1}, flow_name="f", needs=(("a", "b"),),
        created_at=NOW,
    )  # fmt: skip
    wire = json.loads(json.dumps(version.to_wire()))
    assert FlowVersion.model_validate(wire | {"newField": 1}) == version
    assert set(wire) - set(version.summary()) == {"document"}
    assert version_id_of("0123456789abcdef" + "0" * 48) == "0123456789abcdef"


def test_a_flow_of_an_older_version_is_read() -> None:
    assert Flow.model_validate({"flowId": "f", "createdAt": NOW, "updatedAt": NOW}).versions == 0


# --- JSON values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "at", "words"),
    [
        (ObjectId(), "", "is a ObjectId, which JSON cannot say"),
        (datetime.datetime.now(datetime.UTC), "", "is a datetime"),
        (datetime.datetime(2026, 1, 1), "", "is a datetime"),  # noqa: DTZ001
        (datetime.date(2026, 1, 1), "", "is a date"),
        (math.nan, "", "is nan, which JSON cannot say"),
        (-math.inf, "", "is -inf"),
        (2**53 + 1, "", "is 9007199254740993, beyond 2**53 - 1"),
        (-(2**53), "", "is -9007199254740992, beyond"),
        ("a\ud800", "", "has a lone surrogate"),
        ({"\udfff": 1}, "", "has a key with a lone surrogate"),
        ({1: 2}, "", "has the key 1, which is no string"),
        ({"a/b": [0, {"~": {1, 2}}]}, "/a~1b/1/~0", "is a set"),
        (b"bytes", "", "is a bytes"),
        ({"a": (1, math.nan)}, "/a/1", "is nan"),
    ],
)
def test_what_json_cannot_carry_is_refused_with_its_place(value: Any, at: str, words: str) -> None:
    fault = find_fault(value)
    assert fault is not None
    assert fault.at == at
    assert fault.message.startswith(words)
    with pytest.raises(BadRequest) as refused:
        check_json({"deep": value}, "/input")
    assert refused.value.faults[0].at == f"/input/deep{at}"


def test_a_subclass_of_a_json_type_is_refused_rather_than_changed() -> None:
    class Text(str):
        __slots__ = ()

    assert find_fault({"a": Text("x")}) is not None
    assert find_fault(RunStatus.QUEUED) is not None


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_depth_is_bounded_before_anything_recurses_too_far() -> None:
    assert find_fault(nested(MAX_DEPTH)) is None
    for depth in (MAX_DEPTH + 1, 100_000):
        fault = find_fault(nested(depth))
        assert fault is not None
        assert "100 levels" in fault.message
        assert len(fault.at) <= 200


def test_size_is_counted_in_bytes_of_json() -> None:
    check_json({"a": "é"}, max_bytes=10)
    with pytest.raises(BadRequest, match="is 10 bytes as JSON and may have 9"):
        check_json({"a": "é"}, "/input", max_bytes=9)


SOUND = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)
UNSOUND = st.sampled_from(
    [math.nan, math.inf, 2**53, -(2**53), 10**400, "\ud800", b"", {1: 1}, {"\ud800": 1}, {1}, object()]
)


@given(SOUND)
@settings(deadline=None, max_examples=150)
def test_what_is_let_through_comes_back_identical(value: Any) -> None:
    assert find_fault(value) is None
    text = dumps(value)
    assert repr(loads(text)) == repr(value)
    assert json.loads(text) == value


@given(SOUND, st.lists(st.booleans(), max_size=6), UNSOUND)
@settings(deadline=None, max_examples=150)
def test_one_bad_value_anywhere_is_found_where_it_is(beside: Any, path: list[bool], bad: Any) -> None:
    value, at = bad, ""
    for in_list in path:
        value, at = ([beside, value], f"/1{at}") if in_list else ({"a": beside, "k": value}, f"/k{at}")
    fault = find_fault(value, "/input")
    assert fault is not None
    assert fault.at == f"/input{at}"


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 9)))
def test_equal_values_have_one_canonical_form(value: dict[str, int]) -> None:
    try:
        expected = canonical(value)
    except TypeError:  # a lone surrogate
        return
    assert canonical(dict(reversed(value.items()))) == expected


# --- times -----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 250_000_000_000_000))
@settings(deadline=None, max_examples=100)
def test_a_time_comes_back_from_its_text(ms: int) -> None:
    assert from_rfc3339(to_rfc3339(ms)) == ms


def test_a_time_without_an_offset_is_refused() -> None:
    with pytest.raises(ValueError, match="has no time zone; write it like"):
        from_rfc3339("2026-11-30T21:40:00")

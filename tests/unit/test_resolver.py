"""Resolving, rule by rule: who may be picked, which role it is sent to, and what is said about it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from app.errors import Conflict, NoHealthyVariant
from app.models.json_value import find_fault
from app.models.role import QueueStats
from app.resolver import VersionRef, choose_role, resolve
from app.roles import PlainRoles
from tests.unit.resolving import Queues, deployment, heartbeat, resolve_for, table, variant, versions_of

SESSIONS = [f"session-{number}" for number in range(200)]
SEED_TEXT = "no variants with healthy target roles"

CANARY = deployment(variant("stable", 50, "worker"), variant("canary", 50, "gpu-worker"))


def candidate(explain: dict[str, Any], label: str) -> dict[str, Any]:
    [found] = [each for each in explain["candidates"] if each["label"] == label]
    return found


# --- the seed's three cases --------------------------------------------------------------------------------------


def test_a_canary_pinned_to_a_dead_role_is_skipped() -> None:
    roles = PlainRoles({"worker": True, "gpu-worker": False})
    assert {resolve_for(CANARY, session, roles=roles).variant.label for session in SESSIONS} == {"stable"}


def test_without_a_checker_some_sessions_reach_the_canary() -> None:
    picked = {resolve_for(CANARY, session, roles=None).variant.label for session in SESSIONS}
    assert picked == {"stable", "canary"}


def test_with_all_roles_dead_the_refusal_has_the_seeds_words() -> None:
    for roles in (PlainRoles({"worker": False}), PlainRoles(lambda role: False), PlainRoles.of([]), table()):
        with pytest.raises(NoHealthyVariant, match=SEED_TEXT) as caught:
            resolve_for(CANARY, "s", roles=roles)
        assert caught.value.code == "no_healthy_variant"
        assert caught.value.explain["picked"] is None
        assert not any(each["eligible"] for each in caught.value.explain["candidates"])


# --- rules 1, 5, 6: refusals -------------------------------------------------------------------------------------


def test_a_disabled_deployment_is_refused() -> None:
    with pytest.raises(Conflict) as caught:
        resolve_for(deployment(variant("only"), disabled=True))
    assert caught.value.code == "deployment_disabled"


def test_a_deployment_of_which_no_version_is_published_is_refused() -> None:
    for versions in ({}, {"stable": None, "canary": None}):
        with pytest.raises(Conflict, match=r"flow-canary.*flow-stable") as caught:
            resolve_for(CANARY, versions=versions)
        assert caught.value.code == "flow_not_published"


def test_a_variant_without_a_version_is_left_out_and_told_why() -> None:
    dep = deployment(variant("a"), variant("b", version_id="v9"), variant("c"))
    result = resolve_for(dep, versions={"c": VersionRef("flow-c", "v1")}, own_role="worker")
    assert result.variant.label == "c"
    assert result.version == VersionRef("flow-c", "v1")
    assert candidate(result.explain, "a")["reasons"] == ["flow_not_published"]
    assert candidate(result.explain, "b")["reasons"] == ["version_not_found"]
    assert candidate(result.explain, "a")["eligible"] is False


def test_weights_that_are_all_zero_are_refused_as_a_conflict() -> None:
    with pytest.raises(Conflict) as caught:
        resolve_for(deployment(variant("a", 0), variant("b", 0)), roles=PlainRoles.of([]))
    assert caught.value.code == "no_positive_weight"


def test_only_zero_weights_left_after_filtering_is_unavailable() -> None:
    dep = deployment(variant("a", 0, "worker"), variant("b", 5, "gpu-worker"))
    with pytest.raises(NoHealthyVariant, match=SEED_TEXT) as caught:
        resolve_for(dep, roles=PlainRoles.of(["worker"]))
    assert candidate(caught.value.explain, "a")["eligible"] is True
    assert candidate(caught.value.explain, "a")["reasons"] == ["zero_weight"]
    assert candidate(caught.value.explain, "b")["reasons"] == ["no_workers"]


def test_the_refusal_says_of_each_variant_why_and_stays_short() -> None:
    dep = deployment(*(variant(f"v{number}", 1, "gpu-worker") for number in range(100)))
    with pytest.raises(NoHealthyVariant) as caught:
        resolve_for(dep, roles=table(heartbeat("gpu-worker", draining=True)))
    assert "v0 (draining)" in str(caught.value)
    assert "and 90 more" in str(caught.value)
    assert len(caught.value.explain["candidates"]) == 100


# --- rules 2 and 3: the filter -----------------------------------------------------------------------------------


def test_nobody_to_ask_is_not_the_same_as_nobody_eligible() -> None:
    dep = deployment(variant("only", 1, "gpu-worker", "worker"))
    result = resolve_for(dep, roles=None)
    assert (result.target_role, result.explain["roleReason"]) == ("gpu-worker", "first_role")
    assert candidate(result.explain, "only")["roles"] == {}
    with pytest.raises(NoHealthyVariant):
        resolve_for(dep, roles=table())


def test_any_eligible_target_role_keeps_a_variant_in() -> None:
    dep = deployment(variant("only", 1, "gpu-worker", "worker"))
    result = resolve_for(dep, roles=table(heartbeat("worker"), heartbeat("gpu-worker", healthy=False)))
    assert result.target_role == "worker"
    assert candidate(result.explain, "only")["roles"] == {
        "gpu-worker": {"healthy": False, "eligible": False, "free": None, "reason": "unhealthy"},
        "worker": {"healthy": True, "eligible": True, "free": None},
    }


def test_a_variant_is_told_every_reason_for_which_its_roles_failed() -> None:
    dep = deployment(variant("a", 1, "r1", "r2", "r3", "r4", "r5"), variant("b", 1, "fine"))
    beats = [
        heartbeat("r1", healthy=False, nodes=("x",)), heartbeat("r2", executes=False, nodes=("x",)),
        heartbeat("r3", draining=True, nodes=("x",)), heartbeat("r4"), heartbeat("fine", nodes=("x",)),
    ]  # fmt: skip
    entry = candidate(resolve_for(dep, roles=table(*beats), needs=(("x",),)).explain, "a")
    assert entry["reasons"] == ["unhealthy", "does_not_execute", "draining", "missing_handler", "no_workers"]
    assert [role["healthy"] for role in entry["roles"].values()] == [False, True, True, True, False]


def test_a_variant_runs_where_the_handlers_of_its_own_version_are() -> None:
    dep = deployment(variant("plain", 1, "worker"), variant("ocr", 1, "worker"))
    versions = {"plain": VersionRef("f", "1", (("core/log",),)), "ocr": VersionRef("g", "1", (("acme/ocr",),))}
    roles = table(heartbeat("worker", nodes=("core/log",)))
    picked = {resolve_for(dep, session, roles=roles, versions=versions).variant.label for session in SESSIONS}
    assert picked == {"plain"}


# --- rule 7: the role --------------------------------------------------------------------------------------------


def test_of_several_eligible_roles_the_one_with_the_most_free_capacity_is_chosen() -> None:
    queues = Queues({"a": QueueStats(queued=1, running=3), "b": QueueStats(running=1), "c": QueueStats(queued=9)})
    roles = table(heartbeat("a"), heartbeat("b"), heartbeat("c"), queues=queues)
    result = resolve_for(deployment(variant("only", 1, "a", "b", "c", "dead")), roles=roles)
    assert (result.target_role, result.explain["roleReason"]) == ("b", "most_free")
    shown = candidate(result.explain, "only")["roles"]
    assert {role: entry["free"] for role, entry in shown.items()} == {"a": 0, "b": 3, "c": -5, "dead": None}
    assert len(queues.asked) == 1


def test_of_equally_free_roles_the_first_that_the_variant_names_is_chosen() -> None:
    roles = table(heartbeat("a"), heartbeat("b"))
    assert resolve_for(deployment(variant("only", 1, "b", "a")), roles=roles).target_role == "b"
    assert resolve_for(deployment(variant("only", 1, "b", "a")), roles=PlainRoles.of(["a", "b"])).target_role == "b"


def test_the_queues_are_not_read_where_there_is_no_choice() -> None:
    queues = Queues()
    roles = table(heartbeat("worker"), heartbeat("gpu-worker", healthy=False), queues=queues)
    result = resolve_for(deployment(variant("only", 1, "gpu-worker", "worker")), roles=roles)
    assert result.explain["roleReason"] == "only_role"
    assert queues.asked == []


# --- un-pinned variants ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("default_role", "own_role", "chosen"),
    [
        ("worker", "api", ("worker", "default_role")),
        ("dead", "api", ("api", "own_role")),
        (None, "api", ("api", "own_role")),
        (None, "admin-api", ("gpu-worker", "most_free")),
        ("dead", "dead", ("gpu-worker", "most_free")),
        (None, None, ("gpu-worker", "most_free")),
    ],
)
def test_an_unpinned_variant_goes_to_the_default_role_the_own_role_or_the_freest(
    default_role: str | None, own_role: str | None, chosen: tuple[str, str]
) -> None:
    beats = [
        heartbeat("worker"), heartbeat("api"), heartbeat("gpu-worker", concurrency=9),
        heartbeat("admin-api", executes=False, concurrency=0), heartbeat("dispatcher", executes=False, concurrency=99),
    ]  # fmt: skip
    roles = table(*beats)
    assert choose_role((), (), roles, default_role, own_role) == chosen
    result = resolve_for(deployment(variant("any")), roles=roles, default_role=default_role, own_role=own_role)
    assert (result.target_role, result.explain["roleReason"]) == chosen


def test_an_unpinned_variant_is_out_when_no_role_at_all_is_eligible() -> None:
    roles = table(heartbeat("dispatcher", executes=False), heartbeat("gpu-worker", draining=True))
    with pytest.raises(NoHealthyVariant, match=SEED_TEXT) as caught:
        resolve_for(deployment(variant("any")), roles=roles, own_role="admin-api")
    entry = candidate(caught.value.explain, "any")
    assert entry["reasons"] == ["no_workers", "does_not_execute", "draining"]
    assert list(entry["roles"]) == ["admin-api", "dispatcher", "gpu-worker"]
    with pytest.raises(NoHealthyVariant) as caught:
        resolve_for(deployment(variant("any")), roles=table())
    assert candidate(caught.value.explain, "any")["reasons"] == ["no_workers"]


def test_a_plain_function_lets_an_unpinned_variant_go_to_the_default_or_own_role() -> None:
    dep = deployment(variant("any"))
    assert resolve_for(dep, roles=PlainRoles(lambda role: True), own_role="api").target_role == "api"
    with pytest.raises(NoHealthyVariant):
        resolve_for(dep, roles=PlainRoles(lambda role: role == "gpu-worker"), own_role="api")


def test_without_a_checker_an_unpinned_variant_goes_to_the_default_or_the_own_role() -> None:
    dep = deployment(variant("any"))
    assert resolve_for(dep, default_role="worker", own_role="api").target_role == "worker"
    assert resolve_for(dep, default_role="", own_role="api").target_role == "api"
    with pytest.raises(NoHealthyVariant) as caught:
        resolve_for(dep)
    assert candidate(caught.value.explain, "any")["reasons"] == ["no_role"]


def test_a_role_is_chosen_again_among_a_variants_roles_alone() -> None:
    roles = table(heartbeat("worker"))
    assert choose_role(("gpu-worker", "worker"), (), roles, "api", "api") == ("worker", "only_role")
    assert choose_role(("gpu-worker",), (), roles, "worker", "worker") is None


def test_a_checker_that_changes_its_mind_is_a_refusal_and_no_crash() -> None:
    answers = iter([True, False])
    with pytest.raises(NoHealthyVariant):
        resolve_for(deployment(variant("only", 1, "worker")), roles=PlainRoles(lambda role: next(answers)))


# --- sticky values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sticky_by", "meta", "key"),
    [
        ("session", {"session_id": "s-42", "user_id": "u"}, "session_id"),
        ("user", {"session_id": "s", "user_id": "u-42"}, "user_id"),
        ("tenant", {"tenant": "t-42"}, "tenant"),
        ("tenant", {"tenant": 42}, "tenant"),
        ("tenant", {"tenant": 0}, "tenant"),
    ],
)
def test_a_sticky_value_picks_by_itself_and_only_its_keys_name_is_explained(
    sticky_by: str, meta: dict[str, Any], key: str
) -> None:
    dep = deployment(variant("a", 1, "r"), variant("b", 1, "r"), sticky_by=sticky_by)
    results = [resolve_for(dep, meta=meta, rng=random.Random(seed)) for seed in range(20)]
    assert len({result.variant.label for result in results}) == 1
    explain = results[0].explain
    assert (explain["by"], explain["stickyKey"]) == ("sticky", key)
    assert "42" not in json.dumps(explain)


@pytest.mark.parametrize(
    ("sticky_by", "meta"),
    [
        ("none", {"session_id": "s"}),
        ("session", {}),
        ("session", {"session_id": ""}),
        ("session", {"session_id": None}),
        ("session", {"session_id": True}),
        ("session", {"session_id": 1.5}),
        ("session", {"session_id": ["s"]}),
        ("tenant", {"session_id": "s"}),
    ],
)
def test_what_is_no_sticky_value_is_drawn(sticky_by: str, meta: dict[str, Any]) -> None:
    dep = deployment(variant("a", 1, "r"), variant("b", 1, "r"), sticky_by=sticky_by)
    results = [resolve_for(dep, meta=meta, rng=random.Random(seed)) for seed in range(30)]
    assert {result.variant.label for result in results} == {"a", "b"}
    assert results[0].explain["by"] == "draw"
    assert "stickyKey" not in results[0].explain


def test_a_number_and_its_text_are_one_session() -> None:
    dep = deployment(*(variant(f"v{number}", 1, "r") for number in range(50)))
    for number in (0, 7, -1, 2**60):
        by_number = resolve_for(dep, meta={"session_id": number})
        assert by_number.variant == resolve_for(dep, meta={"session_id": str(number)}).variant


@pytest.mark.parametrize("value", ["\x00", "\ud800", "é", "e\u0301", "🙂" * 500, "1:a", " "])
def test_any_text_is_a_session(value: str) -> None:
    dep = deployment(variant("grün", 1, "r"), variant("青", 1, "r"), variant("a:b", 1, "r"))
    first, again = (resolve_for(dep, value, rng=random.Random(seed)) for seed in (1, 2))
    assert first.variant == again.variant


def test_a_single_variant_left_is_the_only_one_whatever_the_session() -> None:
    result = resolve_for(CANARY, "s", roles=PlainRoles.of(["worker"]))
    assert result.explain["by"] == "only"
    assert "stickyKey" not in result.explain


# --- rule 8: the explanation -------------------------------------------------------------------------------------


def test_the_explanation_has_the_shape_of_the_design() -> None:
    dep = deployment(variant("stable", 30, "worker"), variant("next", 10), variant("canary", 60, "gpu-worker"))
    result = resolve_for(
        dep, "s", roles=table(heartbeat("worker"), heartbeat("gpu-worker", draining=True)), snapshot_age_ms=250
    )
    explain = result.explain
    assert {**explain, "candidates": None, "picked": None, "roleReason": None} == {
        "candidates": None,
        "picked": None,
        "by": "sticky",
        "stickyKey": "session_id",
        "role": "worker",
        "roleReason": None,
        "snapshotAgeMs": 250,
    }
    assert explain["picked"] == result.variant.label
    assert explain["role"] == result.target_role
    assert [(each["label"], each["weight"], each["effective"], each["reasons"]) for each in explain["candidates"]] == [
        ("stable", 30, 0.75, []),
        ("next", 10, 0.25, []),
        ("canary", 60, 0.0, ["draining"]),
    ]
    assert find_fault(explain) is None


def test_versions_and_needs_do_not_change_what_they_were_given() -> None:
    dep = CANARY
    versions = versions_of(dep)
    before = dict(versions)
    meta = {"session_id": "s"}
    resolve(dep, versions, meta, random.Random(1), PlainRoles.of(["worker"]), None, None)
    assert versions == before
    assert meta == {"session_id": "s"}

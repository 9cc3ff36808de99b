"""Roles: what heartbeats add up to, and what a resolver is told about them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.models.role import Capability, QueueStats
from app.roles import PlainRoles, RoleFault, fold, is_role_healthy
from tests.unit.resolving import Queues, heartbeat, table

WELL = Capability(healthy=True, executes=True, draining=False, nodes=frozenset({"core/log"}))


def test_instances_of_one_role_that_can_do_the_same_are_counted_together() -> None:
    roles = fold([heartbeat("gpu", nodes=("core/log",), concurrency=2), heartbeat("gpu", nodes=("core/log",))])
    assert roles["gpu"].workers == {WELL: 2}
    assert roles["gpu"].concurrency == {WELL: 6}
    assert roles["gpu"].slots == 6
    assert fold([]) == {}


def test_slots_are_those_of_instances_that_would_take_a_run_now() -> None:
    roles = fold(
        [
            heartbeat("gpu"),
            heartbeat("gpu", healthy=False),
            heartbeat("gpu", draining=True),
            heartbeat("gpu", executes=False),
        ]
    )
    assert roles["gpu"].count == 4
    assert roles["gpu"].slots == 4


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.builds(
            heartbeat,
            role=st.sampled_from(["a", "b"]),
            healthy=st.booleans(),
            executes=st.booleans(),
            draining=st.booleans(),
            concurrency=st.integers(0, 8),
            nodes=st.sets(st.sampled_from(["x", "y"])).map(tuple),
        )
    )
)
def test_no_instance_and_no_slot_is_lost_or_counted_twice(beats: list[Any]) -> None:
    roles = fold(beats)
    assert sum(summary.count for summary in roles.values()) == len(beats)
    assert sum(sum(summary.concurrency.values()) for summary in roles.values()) == sum(b.concurrency for b in beats)
    for role, summary in roles.items():
        assert is_role_healthy(roles, role) == any(beat.healthy for beat in beats if beat.role == role)
        assert all(count > 0 for count in summary.workers.values())


def test_a_role_is_healthy_when_one_instance_says_so_whatever_else_holds_of_it() -> None:
    roles = fold([heartbeat("gpu", healthy=False), heartbeat("gpu", draining=True, executes=False)])
    assert is_role_healthy(roles, "gpu")
    assert not is_role_healthy(roles, "api")
    assert not is_role_healthy(fold([heartbeat("gpu", healthy=False)]), "gpu")


NEEDS = (("acme/ocr", "core/log"), ("core/delay",))


@pytest.mark.parametrize(
    ("beats", "fault"),
    [
        ([], "no_workers"),
        ([{"healthy": False}], "unhealthy"),
        ([{"executes": False}], "does_not_execute"),
        ([{"draining": True}], "draining"),
        ([{"nodes": ("core/log",)}], "missing_handler"),
        ([{"nodes": ("acme/ocr",)}, {"nodes": ("core/delay",)}], "missing_handler"),
        ([{"nodes": ("core/log", "core/delay", "more")}], None),
        ([{"healthy": False}, {"nodes": ("acme/ocr", "core/delay")}], None),
        # The best of several instances is the one that speaks for the role.
        ([{"draining": True}, {"healthy": False}, {"executes": False}], "draining"),
        ([{"draining": True, "nodes": ("core/log", "core/delay")}, {"nodes": ()}], "missing_handler"),
        ([{"healthy": False, "nodes": ("core/log", "core/delay")}, {"executes": False}], "does_not_execute"),
    ],
)
def test_a_role_is_told_what_keeps_it_from_a_version(beats: list[dict[str, Any]], fault: RoleFault | None) -> None:
    view = table(*(heartbeat("gpu", **changes) for changes in beats))
    assert view.fault("gpu", NEEDS) == fault
    assert view.eligible("gpu", NEEDS) == (fault is None)
    assert view.healthy("gpu") == (fault not in ("no_workers", "unhealthy"))


def test_a_version_without_needs_runs_on_any_executing_instance() -> None:
    assert table(heartbeat("gpu", nodes=())).eligible("gpu", ())


def test_free_is_what_is_neither_running_nor_queued_and_the_queues_are_read_once() -> None:
    queues = Queues({"gpu": QueueStats(queued=3, running=2), "api": QueueStats(queued=1)})
    view = table(
        heartbeat("gpu"), heartbeat("api"), heartbeat("idle", concurrency=2), heartbeat("dispatcher", executes=False),
        queues=queues,
    )  # fmt: skip
    assert queues.asked == []
    assert [view.free(role) for role in ("gpu", "api", "idle", "dispatcher", "unknown")] == [-1, 3, 2, 0, 0]
    [roles] = queues.asked
    assert sorted(roles) == ["api", "gpu", "idle"]


def test_the_seeds_plain_mapping_is_a_view() -> None:
    view = PlainRoles({"gpu": True, "api": False})
    assert sorted(view.roles()) == ["api", "gpu"]
    assert view.healthy("gpu")
    assert view.eligible("gpu", NEEDS)
    assert view.fault("api", ()) == "unhealthy"
    assert view.fault("other", ()) == "no_workers"
    assert view.free("gpu") == 0


def test_the_seeds_plain_function_is_a_view_that_knows_no_list() -> None:
    view = PlainRoles(lambda role: role == "gpu")
    assert view.roles() == ()
    assert view.eligible("gpu", ())
    assert view.fault("api", ()) == "unhealthy"


def test_a_what_if_list_is_a_view() -> None:
    view = PlainRoles.of(["gpu", "gpu"])
    assert view.roles() == ("gpu",)
    assert view.eligible("gpu", ())
    assert not view.eligible("api", ())
    assert not PlainRoles.of([]).roles()

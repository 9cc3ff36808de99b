"""What every register must do, in memory and on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from app.models.role import Capability
from app.roles import fold, is_role_healthy
from tests.contract.registers import (
    INTERVAL_MS,
    LEASE_TTL_MS,
    MARGIN_MS,
    SILENCE_MS,
    TTL_MS,
    UNKNOWN_MS,
    Bench,
    MemoryBench,
    heartbeat,
    redis_bench,
)  # fmt: skip

SILENT = SILENCE_MS + MARGIN_MS
"""Long enough for a gap, and shorter than the TTL."""


@pytest.fixture(params=["memory", "redis"])
def bench(request: pytest.FixtureRequest, key_prefix: str) -> Iterator[Bench]:
    if request.param == "memory":
        yield MemoryBench()
    else:
        yield from redis_bench(request.getfixturevalue("valkey"), key_prefix)


def idents(bench: Bench) -> list[str]:
    return [instance.heartbeat.instance_id for instance in bench.register.instances()]


def keep_beating(bench: Bench, ms: int, *alive: str) -> None:
    """Let time pass while some instances go on beating."""
    for _ in range(0, ms, INTERVAL_MS // 2):
        bench.advance(INTERVAL_MS // 2)
        for ident in alive:
            bench.register.beat(heartbeat(ident))


# --- announcing and leaving --------------------------------------------------------------------------------------


def test_an_instance_is_there_from_its_first_beat(bench: Bench) -> None:
    beat = heartbeat("a", "gpu-worker", checks={"pool": {"healthy": True, "detail": "4 alive", "ms": 1.5}})
    reply = bench.register.beat(beat)
    assert reply.accepted
    assert not reply.gap
    [instance] = bench.register.instances()
    assert instance.heartbeat == beat
    assert instance.last_seen_ms == reply.server_ms
    snapshot = bench.register.snapshot()
    assert snapshot.known
    assert snapshot.quiet_until_ms == 0
    assert snapshot.at_ms >= reply.server_ms
    assert snapshot.roles == fold([beat])
    assert is_role_healthy(snapshot.roles, "gpu-worker")


def test_a_role_counts_its_instances_by_what_they_can_do(bench: Bench) -> None:
    beats = [
        heartbeat("a"),
        heartbeat("b", concurrency=2),
        heartbeat("c", healthy=False),
        heartbeat("d", draining=True),
        heartbeat("e", executes=False, concurrency=0),
        heartbeat("f", nodes=("core/log", "acme/ocr")),
        heartbeat("g", nodes=("acme/ocr", "core/log", "core/log")),
        heartbeat("h", "gpu-worker", nodes=()),
    ]
    for beat in beats:
        bench.register.beat(beat)
    roles = bench.register.snapshot().roles
    assert roles == fold(beats)
    assert roles["worker"].workers[Capability(True, True, False, frozenset({"core/log"}))] == 2
    assert roles["worker"].workers[Capability(True, True, False, frozenset({"core/log", "acme/ocr"}))] == 2
    assert roles["worker"].slots == 4 + 2 + 4 + 4


def test_a_beat_that_says_something_new_replaces_what_the_instance_said_before(bench: Bench) -> None:
    bench.register.beat(heartbeat("a"))
    bench.register.beat(heartbeat("b"))
    for changed in (
        heartbeat("a", healthy=False),
        heartbeat("a", draining=True),
        heartbeat("a", nodes=("x/y",), concurrency=9),
        heartbeat("a", "gpu-worker", nodes=()),
    ):
        bench.register.beat(changed)
        assert bench.register.snapshot().roles == fold([changed, heartbeat("b")])


def test_goodbye_takes_the_instance_out_at_once(bench: Bench) -> None:
    bench.register.beat(heartbeat("a"))
    bench.register.beat(heartbeat("b"))
    bench.register.leave("a")
    assert idents(bench) == ["b"]
    assert bench.register.snapshot().roles == fold([heartbeat("b")])
    bench.register.leave("a")
    bench.register.leave("never-seen")
    bench.register.leave("b")
    assert bench.register.snapshot().roles == {}
    assert bench.register.snapshot().known


def test_two_instances_on_one_host_are_two_rows(bench: Bench) -> None:
    bench.register.beat(heartbeat("a", hostname="twin", node="worker@twin"))
    bench.register.beat(heartbeat("b", hostname="twin", node="worker@twin"))
    assert idents(bench) == ["a", "b"]
    keep_beating(bench, TTL_MS + MARGIN_MS, "b")
    assert idents(bench) == ["b"]


def test_instances_are_listed_by_role_and_node(bench: Bench) -> None:
    for ident, role, node in (("1", "worker", "worker-2@h"), ("2", "api", "api@h"), ("3", "worker", "worker-1@h")):
        bench.register.beat(heartbeat(ident, role, node=node))
    assert idents(bench) == ["2", "3", "1"]


# --- dying -------------------------------------------------------------------------------------------------------


def test_an_instance_not_heard_of_for_the_ttl_is_gone_and_the_others_stay(bench: Bench) -> None:
    bench.register.beat(heartbeat("dead"))
    bench.register.beat(heartbeat("alive"))
    keep_beating(bench, TTL_MS - INTERVAL_MS // 2, "alive")
    assert idents(bench) == ["alive", "dead"]
    keep_beating(bench, INTERVAL_MS, "alive")
    snapshot = bench.register.snapshot()
    assert snapshot.known
    assert snapshot.roles == fold([heartbeat("alive")])
    assert idents(bench) == ["alive"]


def test_of_a_hundred_instances_of_which_fifty_die_exactly_fifty_are_left(bench: Bench) -> None:
    names = [f"{number:03}" for number in range(100)]
    for name in names:
        bench.register.beat(heartbeat(name))
    for _ in range(4):
        bench.advance(INTERVAL_MS)
        for name in names[::2]:
            bench.register.beat(heartbeat(name))
    assert bench.register.snapshot().roles["worker"].count == 50
    assert idents(bench) == names[::2]


def test_an_instance_that_comes_back_is_counted_once(bench: Bench) -> None:
    bench.register.beat(heartbeat("a"))
    keep_beating(bench, TTL_MS + MARGIN_MS, "b")
    bench.register.beat(heartbeat("a"))
    assert bench.register.snapshot().roles == fold([heartbeat("a"), heartbeat("b")])


# --- beats that were stuck on the way ----------------------------------------------------------------------------


def test_a_beat_that_arrives_far_from_when_it_should_is_refused_and_told_the_time(bench: Bench) -> None:
    now = bench.register.beat(heartbeat("a")).server_ms
    for away in (-INTERVAL_MS - MARGIN_MS, INTERVAL_MS + MARGIN_MS):
        reply = bench.register.beat(heartbeat("stuck"), expected_ms=now + away)
        assert not reply.accepted
        assert reply.server_ms >= now
        assert bench.register.beat(heartbeat("a"), expected_ms=reply.server_ms).accepted
    for away in (-INTERVAL_MS + MARGIN_MS, INTERVAL_MS - MARGIN_MS):
        assert bench.register.beat(heartbeat("a"), expected_ms=now + away).accepted
    assert idents(bench) == ["a"]


def test_a_refused_beat_neither_revives_its_sender_nor_ends_a_gap(bench: Bench) -> None:
    now = bench.register.beat(heartbeat("a")).server_ms
    bench.register.leave("a")
    bench.register.beat(heartbeat("b"))
    bench.advance(SILENT)
    late = now - INTERVAL_MS - SILENT
    assert not bench.register.beat(heartbeat("a"), expected_ms=late).accepted
    assert idents(bench) == ["b"]
    assert not bench.register.snapshot().known
    assert bench.register.beat(heartbeat("b")).gap


# --- gaps --------------------------------------------------------------------------------------------------------


def test_a_first_start_is_no_gap(bench: Bench) -> None:
    assert bench.register.snapshot().known
    assert bench.register.snapshot().roles == {}
    assert not bench.register.beat(heartbeat("a")).gap
    assert bench.register.snapshot().known


def test_a_start_long_after_a_clean_stop_of_everything_is_no_gap(bench: Bench) -> None:
    bench.register.beat(heartbeat("a"))
    bench.register.leave("a")
    bench.advance(3_600_000)
    assert bench.register.snapshot().known
    assert not bench.register.beat(heartbeat("b")).gap
    assert bench.register.snapshot().known
    assert bench.register.snapshot().quiet_until_ms == 0


def test_silence_of_less_than_half_the_ttl_is_no_gap(bench: Bench) -> None:
    bench.register.beat(heartbeat("a"))
    bench.advance(SILENCE_MS - MARGIN_MS)
    assert bench.register.snapshot().known
    assert not bench.register.beat(heartbeat("a")).gap


def test_in_a_gap_nobody_knows_who_lives_and_nobody_is_forgotten(bench: Bench) -> None:
    bench.register.beat(heartbeat("a"))
    bench.register.beat(heartbeat("b"))
    bench.advance(10 * TTL_MS)
    snapshot = bench.register.snapshot()
    assert not snapshot.known
    assert snapshot.quiet_until_ms == snapshot.at_ms + LEASE_TTL_MS
    assert idents(bench) == ["a", "b"]


def test_after_a_gap_the_register_is_unknown_until_everybody_had_the_time_to_beat_again(bench: Bench) -> None:
    bench.register.beat(heartbeat("a"))
    bench.register.beat(heartbeat("b"))
    bench.advance(10 * TTL_MS)
    first = bench.register.beat(heartbeat("a"))
    assert first.gap
    bench.advance(UNKNOWN_MS - MARGIN_MS)
    assert not bench.register.beat(heartbeat("b")).gap
    assert not bench.register.snapshot().known
    bench.advance(2 * MARGIN_MS)
    snapshot = bench.register.snapshot()
    assert snapshot.known
    assert snapshot.roles == fold([heartbeat("a"), heartbeat("b")])


def test_who_did_not_beat_again_after_a_gap_is_gone_when_it_is_over(bench: Bench) -> None:
    bench.register.beat(heartbeat("dead"))
    bench.register.beat(heartbeat("alive"))
    bench.advance(10 * TTL_MS)
    bench.register.beat(heartbeat("alive"))
    assert idents(bench) == ["alive", "dead"]
    bench.advance(UNKNOWN_MS + MARGIN_MS)
    assert idents(bench) == ["alive"]
    assert bench.register.snapshot().roles == fold([heartbeat("alive")])


def test_no_lease_may_be_broken_for_one_lease_ttl_after_a_gap(bench: Bench) -> None:
    bench.register.beat(heartbeat("a"))
    bench.advance(SILENT)
    bench.register.beat(heartbeat("a"))
    snapshot = bench.register.snapshot()
    assert 0 <= snapshot.at_ms - (snapshot.quiet_until_ms - LEASE_TTL_MS) < MARGIN_MS
    bench.advance(INTERVAL_MS)
    bench.register.beat(heartbeat("a"))
    snapshot = bench.register.snapshot()
    assert snapshot.quiet_until_ms - snapshot.at_ms > LEASE_TTL_MS - INTERVAL_MS - MARGIN_MS
    assert snapshot.quiet_until_ms - snapshot.at_ms <= LEASE_TTL_MS - INTERVAL_MS


def test_a_clock_that_is_set_back_is_a_gap_and_keeps_no_dead_instance(bench: Bench) -> None:
    bench.register.beat(heartbeat("dead"))
    bench.register.beat(heartbeat("alive"))
    bench.advance(-3_600_000)
    assert not bench.register.snapshot().known
    assert bench.register.beat(heartbeat("alive")).gap
    keep_beating(bench, UNKNOWN_MS + INTERVAL_MS, "alive")
    assert bench.register.snapshot().known
    keep_beating(bench, TTL_MS + MARGIN_MS, "alive")
    assert idents(bench) == ["alive"]


def test_a_clock_that_is_set_back_after_a_gap_does_not_prolong_it_for_hours(bench: Bench) -> None:
    bench.register.beat(heartbeat("a"))
    bench.advance(SILENT)
    assert bench.register.beat(heartbeat("a")).gap
    bench.register.leave("a")
    bench.advance(-3_600_000)
    bench.register.beat(heartbeat("b"))
    keep_beating(bench, UNKNOWN_MS + INTERVAL_MS, "b")
    assert bench.register.snapshot().known


def test_it_answers_a_ping(bench: Bench) -> None:
    bench.register.ping()


# --- drains ------------------------------------------------------------------------------------------------------


def drained(bench: Bench, ident: str = "a", role: str = "worker", **changes: Any) -> bool:
    """Return what an instance is told in the answer to its heartbeat."""
    return bench.register.beat(heartbeat(ident, role, **changes)).drain


def test_a_drained_node_is_told_so_with_each_beat_and_after_a_restart(bench: Bench) -> None:
    assert not drained(bench, "a", node="worker-2@host")
    bench.register.drain("node", "worker-2@host", by="me")
    assert drained(bench, "a", node="worker-2@host")
    bench.register.leave("a")
    assert drained(bench, "restarted", node="worker-2@host")
    assert not drained(bench, "b", node="worker@host")
    assert bench.register.undrain("node", "worker-2@host")
    assert not drained(bench, "restarted", node="worker-2@host")


def test_a_drained_role_is_told_to_everybody_who_answers_for_it(bench: Bench) -> None:
    bench.register.drain("role", "gpu-worker", by="me")
    assert drained(bench, "a", "gpu-worker")
    assert drained(bench, "b", "gpu-worker", node="gpu-worker-2@host")
    assert not drained(bench, "c", "worker", node="gpu-worker")
    bench.register.drain("node", "gpu-worker@host", by="me")
    assert bench.register.undrain("role", "gpu-worker")
    assert drained(bench, "a", "gpu-worker")
    assert not drained(bench, "b", "gpu-worker", node="gpu-worker-2@host")


def test_a_drain_says_who_wished_it_first_and_since_when(bench: Bench) -> None:
    now = bench.register.beat(heartbeat("a")).server_ms
    role = bench.register.drain("role", "worker", by='somebody "else"')
    assert (role.kind, role.name, role.by) == ("role", "worker", 'somebody "else"')
    assert 0 <= role.at_ms - now < MARGIN_MS
    assert bench.register.drain("role", "worker", by="a later one") == role
    node = bench.register.drain("node", "z@host", by="me")
    assert bench.register.drains() == [node, role]


def test_what_is_not_drained_can_be_undrained_without_harm(bench: Bench) -> None:
    assert bench.register.drains() == []
    assert not bench.register.undrain("role", "worker")
    bench.register.drain("role", "worker", by="me")
    assert not bench.register.undrain("node", "worker")
    assert bench.register.undrain("role", "worker")
    assert bench.register.drains() == []


def test_a_drain_outlives_everybody_of_it(bench: Bench) -> None:
    bench.register.drain("role", "worker", by="me")
    drained(bench, "a")
    keep_beating(bench, TTL_MS + MARGIN_MS)
    assert drained(bench, "b")

"""A process's pulse: what a heartbeat says, what becomes of it while Redis is away, goodbye."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from app.errors import ServerUnavailable
from app.health import Health, HealthCheck
from app.live.memory import MemoryLive
from app.models.heartbeat import Heartbeat
from app.models.run import Run, WorkerRef
from app.ports import BeatReply
from app.pulse import Activity, Identity, Pulse
from app.register.memory import MemoryRegister

WHO = Identity("i-1", "host", "worker", "1.2.3", 42, "worker@host", started_ms=1_000)


class World:
    """A clock moved by hand, a register and a live store in memory, and a pulse of one process."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.live = MemoryLive(lambda: self.now_ms)
        self.register = MemoryRegister(lambda: self.now_ms, interval_ms=10_000, ttl_ms=30_000, lease_ttl_ms=30_000)
        self.activity = Activity(executes=True, pool="prefork", concurrency=2)
        self.held: list[tuple[str, str]] = []
        self.told: list[bool] = []

    def pulse(self, *checks: HealthCheck, register: object = None) -> Pulse:
        return Pulse(
            WHO,
            register=register or self.register,  # type: ignore[arg-type]
            live=self.live,
            health=Health(checks, monotonic=lambda: self.now_ms / 1000, patience_s=1),
            activity=lambda: self.activity,
            nodes=frozenset({"core/log", "core/delay"}),
            leases=lambda: self.held,
            told=self.hear,
            lease_ttl_ms=30_000,
            monotonic=lambda: self.now_ms / 1000,
        )

    def hear(self, drain: bool) -> bool:
        """Drain as a worker does: at once, and until it has opened its queue again."""
        self.told.append(drain)
        begins = drain and not self.activity.draining
        self.activity = replace(self.activity, draining=drain or self.activity.draining)
        return begins


@pytest.fixture
def world() -> World:
    return World()


def test_a_heartbeat_says_who_it_is_and_what_it_can_do(world: World) -> None:
    world.activity = Activity(True, "threads", 4, 1, 2, last_consumed_ms=5_000, draining=True)
    world.pulse(HealthCheck("pool", lambda: "fine")).beat()
    [instance] = world.register.instances()
    wire = instance.heartbeat.to_wire()
    assert (
        wire.items()
        >= {
            "instance_id": "i-1",
            "hostname": "host",
            "role": "worker",
            "version": "1.2.3",
            "started_at": "1970-01-01T00:00:01.000Z",
            "healthy": True,
            "pid": 42,
            "node": "worker@host",
            "executes": True,
            "pool": "threads",
            "concurrency": 4,
            "active": 1,
            "reserved": 2,
            "last_consumed_at": "1970-01-01T00:00:05.000Z",
            "draining": True,
            "nodes": ["core/delay", "core/log"],
            "schema": 1,
        }.items()
    )
    assert wire["checks"]["pool"]["detail"] == "fine"


def test_a_local_fault_makes_the_process_unhealthy_and_a_shared_one_does_not(world: World) -> None:
    def broken() -> None:
        raise RuntimeError("away")

    assert world.pulse(HealthCheck("redis", broken, "shared")).compose().healthy
    assert not world.pulse(HealthCheck("pool", broken, "local")).compose().healthy


def test_a_beat_renews_the_leases_of_the_runs_under_way(world: World) -> None:
    run = Run("r1", "d", "v", "f", "v1", "worker", created_ms=0)
    world.live.create(run)
    world.live.claim("r1", worker=WorkerRef("i-1", "worker@host", "worker"), token="t", ttl_ms=30_000)
    world.held = [("r1", "t")]
    pulse = world.pulse()
    world.now_ms += 20_000
    pulse.beat()
    world.now_ms += 20_000
    assert world.live.expired_leases(10) == []
    world.now_ms += 20_000
    assert world.live.expired_leases(10) == ["r1"]


class Refusing:
    """A register that is away, or that finds every first beat stale."""

    def __init__(self, answer: Callable[[int], BeatReply]) -> None:
        self.answer = answer
        self.expected: list[int | None] = []

    def beat(self, heartbeat: Heartbeat, *, expected_ms: int | None = None) -> BeatReply:
        self.expected.append(expected_ms)
        return self.answer(len(self.expected))

    def leave(self, instance_id: str) -> None:
        raise ServerUnavailable("redis", "frozen")


def test_an_outage_is_said_once_and_its_end_too(world: World, caplog: pytest.LogCaptureFixture) -> None:
    away = True

    def answer(_: int) -> BeatReply:
        if away:
            raise ServerUnavailable("redis", "frozen")
        return BeatReply(True, world.now_ms)

    pulse = world.pulse(register=Refusing(answer))
    with caplog.at_level(logging.INFO, logger="app.pulse"):
        for _ in range(3):
            pulse.beat()
        away = False
        pulse.beat()
        pulse.beat()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_refused_beat_is_said_again_with_what_was_learned_of_the_servers_clock(world: World) -> None:
    register = Refusing(lambda n: BeatReply(accepted=n != 2, server_ms=777_000))
    pulse = world.pulse(register=register)
    pulse.beat()
    world.now_ms += 10_000
    pulse.beat()
    # Nothing is known at first; then the clocks' distance is, then it is learned afresh.
    assert register.expected == [None, 787_000, 777_000]


def test_a_process_that_is_told_to_drain_says_that_it_does_at_once(world: World) -> None:
    world.register.drain("node", WHO.node, by="me")
    pulse = world.pulse()
    pulse.beat()
    [instance] = world.register.instances()
    assert instance.heartbeat.draining
    pulse.beat()
    world.register.undrain("node", WHO.node)
    pulse.beat()
    assert world.told == [True, True, False]


def test_a_beat_that_was_not_taken_tells_nothing(world: World) -> None:
    world.pulse(register=Refusing(lambda _: BeatReply(accepted=False, server_ms=1, drain=True))).beat()
    assert world.told == []


def test_goodbye_is_at_once_and_final(world: World) -> None:
    pulse = world.pulse()
    pulse.beat()
    pulse.leave()
    pulse.beat()
    assert world.register.instances() == []


def test_goodbye_without_a_register_is_no_fault(world: World) -> None:
    world.pulse(register=Refusing(lambda _: BeatReply(True, 0))).leave()

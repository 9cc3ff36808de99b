"""Whatever happens in whatever order: both registers agree, and the counts are those of the living instances."""

from __future__ import annotations

import uuid
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from app.ports import DrainKind
from app.register.memory import MemoryRegister
from app.roles import fold
from tests.contract.registers import TIMES, RedisBench, heartbeat

INSTANCES = st.sampled_from(["a", "b", "c", "d", "e"])
KINDS: list[dict[str, Any]] = [
    {},
    {"healthy": False},
    {"draining": True, "concurrency": 1},
    {"nodes": ("core/log", "acme/ocr"), "concurrency": 7},
    {"role": "gpu-worker", "nodes": ()},
    {"role": "admin-api", "executes": False, "concurrency": 0, "nodes": ()},
]
DRAINS = st.sampled_from([("node", "worker@host"), ("role", "worker"), ("role", "gpu-worker")])
# Sums of these never come near a threshold, so that the real milliseconds which pass meanwhile change nothing.
STEPS = st.sampled_from([4_000, 8_000, 16_000, 32_000])


class Registers(RuleBasedStateMachine):
    """The register on a real server beside the one in memory, which goes by the same clock."""

    url: str

    def __init__(self) -> None:
        super().__init__()
        self.bench = RedisBench(self.url, f"t{uuid.uuid4().hex[:12]}:")
        self.memory = MemoryRegister(self.bench.now, **TIMES)

    def teardown(self) -> None:
        self.bench.close()

    @rule(ident=INSTANCES, kind=st.sampled_from(KINDS))
    def beat(self, ident: str, kind: dict[str, Any]) -> None:
        beat = heartbeat(ident, **kind)
        real, model = self.bench.register.beat(beat), self.memory.beat(beat)
        assert (real.gap, real.drain) == (model.gap, model.drain)

    @rule(drain=DRAINS)
    def drain(self, drain: tuple[DrainKind, str]) -> None:
        self.bench.register.drain(*drain, by="me")
        self.memory.drain(*drain, by="me")

    @rule(drain=DRAINS)
    def undrain(self, drain: tuple[DrainKind, str]) -> None:
        assert self.bench.register.undrain(*drain) == self.memory.undrain(*drain)

    @rule(ident=INSTANCES)
    def leave(self, ident: str) -> None:
        self.bench.register.leave(ident)
        self.memory.leave(ident)

    @rule(ms=STEPS)
    def time_passes(self, ms: int) -> None:
        self.bench.advance(ms)

    @invariant()
    def they_agree(self) -> None:
        real, model = self.bench.register.snapshot(), self.memory.snapshot()
        assert (real.known, real.roles) == (model.known, model.roles)
        assert (real.quiet_until_ms > real.at_ms) == (model.quiet_until_ms > model.at_ms)

    @invariant()
    def the_counts_are_those_of_the_living(self) -> None:
        living = [instance.heartbeat for instance in self.bench.register.instances()]
        assert living == [instance.heartbeat for instance in self.memory.instances()]
        assert self.bench.register.snapshot().roles == fold(living)


def test_both_registers_agree_after_any_history(valkey: str) -> None:
    machine = type("RegistersHere", (Registers,), {"url": valkey})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )

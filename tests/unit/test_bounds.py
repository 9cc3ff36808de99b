"""How long each repair may take: what docs/operations.md states, computed from the settings and held with several.

Time is moved by hand, half a housekeeping period at a time, as a dispatcher's beat does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.config import Settings, load_settings
from app.live.memory import MemoryLive
from app.models.run import Run, RunStatus
from app.wiring import keepers
from tests.integration.flows import counting
from tests.unit.test_rescue import Keepers

TIMES = [
    {},
    {"heartbeat_interval_s": 2.0, "heartbeat_ttl_s": 6.0, "lease_ttl_s": 12.0, "housekeeping_s": 1.0},
    {"heartbeat_interval_s": 5.0, "heartbeat_ttl_s": 60.0, "lease_ttl_s": 15.0, "housekeeping_s": 10.0},
]


class House(Keepers):
    """One worker each of two roles, a dispatcher that keeps house, and real times."""

    def __init__(self, **times: float) -> None:
        super().__init__("worker", "gpu-worker", queue_timeout_s=600.0, **times)
        self.settings: Settings = load_settings({}, queue_timeout_s=600.0, **times)
        self.lease_s = self.settings.lease_ttl_s
        self.step_s = self.settings.housekeeping_s / 2
        self.housekeeping = keepers(self.services, period_s=self.step_s, clock=self.clock, monotonic=lambda: self.now_s)
        self.deploy("shop", counting("shop"), only=(1, ["worker"]))
        self.deploy("both", counting("both"), only=(1, ["worker", "gpu-worker"]))
        self.until(self.live.trusted)

    def until(self, there: Callable[[], bool], *, most_s: float = 3600) -> float:
        """Live on until something is so; return the seconds that it took."""
        began = self.now_s
        while not there():
            assert self.now_s - began < most_s, "it never comes"
            self.now_s += self.step_s
            self.beat("dispatcher", *self.alive)
            self.housekeeping.round()
        return self.now_s - began

    def is_told(self, run: Run, role: str) -> Callable[[], bool]:
        """Whether a message of a queued run lies ready for a role."""
        return lambda: (
            any(nudge.run_id == run.run_id and nudge.target_role == role for nudge in self.nudges.sent)
            and self.run(run).status is RunStatus.QUEUED
        )


def lost_worker(house: House) -> float:
    run = house.start()
    house.claim("worker")
    return house.until(house.is_told(run, "worker"))


def lost_nudge(house: House) -> float:
    run = house.start()
    house.nudges.sent.clear()
    return house.until(house.is_told(run, "worker"))


def overtaken(house: House) -> float:
    run, _ = house.start(), house.start()
    house.nudges.sent = [house.nudges.sent[1]] * 2
    return house.until(house.is_told(run, "worker"))


def dead_role(house: House) -> float:
    run = house.start("both")
    dead = house.run(run).target_role
    house.alive.remove(dead)
    return house.until(house.is_told(run, ({"worker", "gpu-worker"} - {dead}).pop()))


def emptied(house: House) -> float:
    run = house.start()
    assert isinstance(house.live, MemoryLive)
    house.live.lose()
    house.nudges.sent.clear()
    return house.until(house.is_told(run, "worker"))


def half_accepted(house: House) -> float:
    run = house.start()
    assert isinstance(house.live, MemoryLive)
    house.live.lose(run.run_id)
    house.live.trust()
    house.nudges.sent.clear()
    return house.until(house.is_told(run, "worker"))


def nobody_comes(house: House) -> float:
    house.alive.clear()
    run = house.start()
    return house.until(lambda: house.run(run).ended)


def recorded(house: House) -> float:
    run = house.start()
    house.work("worker")
    return house.until(lambda: house.store.get_run(run.run_id).ended)  # type: ignore[union-attr]


def let_go(house: House) -> float:
    run = house.start()
    house.work("worker")
    return house.until(lambda: house.live.get(run.run_id) is None)


@dataclass(frozen=True)
class Repair:
    stated: str
    """As docs/operations.md has it: names of settings, numbers of seconds, ``+``, ``x`` and ``max(a, b)``."""
    happens: Callable[[House], float]


REPAIRS = [
    Repair("LEASE_TTL_S + 1 + 2 x HOUSEKEEPING_S", lost_worker),
    Repair("2 + HOUSEKEEPING_S", lost_nudge),
    Repair("30 + HOUSEKEEPING_S", overtaken),
    Repair("max(HEARTBEAT_TTL_S, 10) + HOUSEKEEPING_S", dead_role),
    Repair("3 x HOUSEKEEPING_S", emptied),
    Repair("10 + 3 x HOUSEKEEPING_S", half_accepted),
    Repair("QUEUE_TIMEOUT_S + HOUSEKEEPING_S", nobody_comes),
    Repair("HOUSEKEEPING_S", recorded),
    Repair("2 x LEASE_TTL_S + 2 x HOUSEKEEPING_S", let_go),
]


def computed(stated: str, settings: Settings) -> float:
    """Return a stated bound in seconds."""
    assert re.fullmatch(r"[A-Z_ +x0-9,()]*|max\(.*\).*", stated)
    names = {name.upper(): value for name, value in settings.model_dump().items() if isinstance(value, float)}
    return float(eval(stated.replace(" x ", " * "), {"max": max, "__builtins__": {}}, names))


@pytest.mark.parametrize("times", TIMES, ids=["default", "short", "long"])
@pytest.mark.parametrize("repair", REPAIRS, ids=lambda repair: repair.happens.__name__)
def test_a_repair_takes_no_longer_than_is_stated(repair: Repair, times: dict[str, float]) -> None:
    house = House(**times)
    assert repair.happens(house) <= computed(repair.stated, house.settings)


@pytest.mark.parametrize("repair", REPAIRS, ids=lambda repair: repair.happens.__name__)
def test_what_is_stated_is_what_is_held(repair: Repair, repository: Path) -> None:
    assert f"`{repair.stated}`" in (repository / "docs" / "operations.md").read_text()

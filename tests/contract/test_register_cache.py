"""The shared copy of a snapshot: one question at a time, a second long, failures included."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from app.errors import OutOfMemory, ServerUnavailable
from app.models.role import RegisterSnapshot
from app.register.cache import SnapshotCache
from app.register.memory import MemoryRegister
from tests.contract.registers import TIMES


class AskedRegister(MemoryRegister):
    """Counts how often it is asked, and answers by ``answer``."""

    def __init__(self, answer: Callable[[], RegisterSnapshot]) -> None:
        super().__init__(lambda: 0, **TIMES)
        self.asked = 0
        self.answer = answer

    def snapshot(self) -> RegisterSnapshot:
        self.asked += 1
        return self.answer()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def away() -> RegisterSnapshot:
    raise ServerUnavailable("redis", "no answer in time")


def test_the_register_is_asked_once_a_second_and_the_age_is_told() -> None:
    clock, register = Clock(), AskedRegister(lambda: RegisterSnapshot(known=True))
    cache = SnapshotCache(register, clock)
    assert cache.get()[1] == 0
    clock.now += 0.75
    assert cache.get()[1] == 750
    assert register.asked == 1
    clock.now += 0.26
    assert cache.get()[1] == 0
    assert register.asked == 2


def test_whoever_needs_a_younger_snapshot_gets_one_and_so_does_everybody() -> None:
    clock, register = Clock(), AskedRegister(lambda: RegisterSnapshot(known=True))
    cache = SnapshotCache(register, clock)
    cache.get()
    clock.now += 0.09
    assert cache.get(0.1)[1] == 90
    clock.now += 0.02
    assert cache.get()[1] == 110
    assert cache.get(0.1)[1] == 0
    assert cache.get()[1] == 0
    assert register.asked == 2


def test_a_snapshot_is_as_old_as_the_question() -> None:
    clock = Clock()

    def slowly() -> RegisterSnapshot:
        clock.now += 0.4
        return RegisterSnapshot(known=True)

    assert SnapshotCache(AskedRegister(slowly), clock).get()[1] == 400


def test_a_failure_is_answered_at_once_for_a_second_and_then_asked_again() -> None:
    clock, register = Clock(), AskedRegister(away)
    cache = SnapshotCache(register, clock)
    first: ServerUnavailable | None = None
    for _ in range(3):
        clock.now += 0.3
        with pytest.raises(ServerUnavailable, match="no answer in time") as caught:
            cache.get()
        assert caught.value is not first
        first = caught.value
    assert register.asked == 1
    register.answer = lambda: RegisterSnapshot(known=True)
    clock.now += 0.5
    assert cache.get()[0].known


def test_a_failure_that_took_longer_than_a_second_is_kept_for_a_second_all_the_same() -> None:
    clock = Clock()

    def frozen() -> RegisterSnapshot:
        clock.now += 2.0
        return away()

    register = AskedRegister(frozen)
    cache = SnapshotCache(register, clock)
    for _ in range(3):
        with pytest.raises(ServerUnavailable):
            cache.get()
    assert register.asked == 1


def test_a_failure_keeps_its_kind() -> None:
    def full() -> RegisterSnapshot:
        raise OutOfMemory("full")

    cache = SnapshotCache(AskedRegister(full), Clock())
    for _ in range(2):
        with pytest.raises(OutOfMemory):
            cache.get()


@pytest.mark.parametrize("slow_s", [0.0, 5.0])
def test_readers_who_come_while_one_is_asking_take_that_answer(slow_s: float) -> None:
    clock, asked, go_on = Clock(), Event(), Event()

    def blocking() -> RegisterSnapshot:
        asked.set()
        assert go_on.wait(20)
        if register.asked == 1:
            clock.now += slow_s
        return RegisterSnapshot(known=True)

    register = AskedRegister(blocking)
    cache = SnapshotCache(register, clock)
    entered = [Event() for _ in range(5)]

    def read(mine: Event) -> bool:
        mine.set()
        return cache.get()[0].known

    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(cache.get)
        assert asked.wait(20)
        others = [pool.submit(read, event) for event in entered]
        assert all(event.wait(20) for event in entered)
        go_on.set()
        first.result(20)
        assert all(other.result(20) for other in others)
    # A reader that had not quite come to wait finds the slow answer stale and asks once more, for all of them.
    assert register.asked <= (1 if slow_s == 0.0 else 2)

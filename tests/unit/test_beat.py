"""Celery's beat with local entries: called in this process, by a clock that nobody can set."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from threading import Event

import pytest
from celery import Celery

from app.beat import Beat, LocalEntry, LocalScheduler


@pytest.fixture
def celery() -> Iterator[Celery]:
    app = Celery("beating", broker="memory://", set_as_current=False)
    yield app
    app.close()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("app.beat.time.monotonic", clock)
    return clock


def scheduler(celery: Celery, *entries: LocalEntry) -> LocalScheduler:
    return LocalScheduler(celery, entries=entries)


def test_an_entry_is_called_at_once_and_then_every_interval(celery: Celery, clock: Clock) -> None:
    calls: list[float] = []
    schedule = scheduler(celery, LocalEntry("heartbeat", 10, lambda: calls.append(clock.now)))
    for _ in range(50):
        wait = schedule.tick()
        assert 0 < wait <= 0.5
        clock.now += wait
    assert calls == [100.0, 110.0, 120.0]


def test_times_that_were_missed_are_not_made_up_for(celery: Celery, clock: Clock) -> None:
    calls: list[float] = []
    schedule = scheduler(celery, LocalEntry("heartbeat", 10, lambda: calls.append(clock.now)))
    schedule.tick()
    clock.now += 300
    for _ in range(3):
        schedule.tick()
    assert calls == [100.0, 400.0]


def test_an_entry_that_fails_is_tried_again_and_the_others_go_on(
    celery: Celery, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    def broken() -> None:
        calls.append("broken")
        raise RuntimeError("away")

    schedule = scheduler(celery, LocalEntry("bad", 10, broken), LocalEntry("good", 10, lambda: calls.append("good")))
    schedule.tick()
    clock.now += 10
    schedule.tick()
    assert calls == ["broken", "good"] * 2
    assert "bad failed; it is tried again in 10 s" in caplog.text


def test_something_worth_saying_is_said_without_waiting(celery: Celery, clock: Clock) -> None:
    calls: list[float] = []
    schedule = scheduler(celery, LocalEntry("heartbeat", 10, lambda: calls.append(clock.now)))
    schedule.tick()
    clock.now += 1
    schedule.call_soon()
    schedule.tick()
    assert calls == [100.0, 101.0]


def test_something_worth_saying_that_happens_during_a_call_is_said_after_it(celery: Celery, clock: Clock) -> None:
    calls: list[float] = []

    def beat() -> None:
        calls.append(clock.now)
        if len(calls) == 1:
            schedule.call_soon()

    schedule = scheduler(celery, LocalEntry("heartbeat", 10, beat))
    for _ in range(3):
        schedule.tick()
    assert calls == [100.0, 100.0]


def test_a_beat_runs_in_a_thread_until_it_is_stopped(celery: Celery) -> None:
    beaten = Event()
    beat = Beat(celery, LocalEntry("heartbeat", 0.01, beaten.set))
    beat.start()
    assert beaten.wait(5)
    beat.stop()
    beaten.clear()
    assert not beaten.wait(0.05)


def test_a_process_whose_beat_has_died_ends_itself(
    celery: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    killed: list[tuple[int, int]] = []
    ended = Event()

    def kill(pid: int, number: int) -> None:
        killed.append((pid, number))
        ended.set()

    monkeypatch.setattr("app.beat.os.kill", kill)
    beat = Beat(celery, LocalEntry("heartbeat", 1, lambda: None))
    monkeypatch.setattr(LocalScheduler, "tick", _die)
    with caplog.at_level(logging.CRITICAL):
        beat.start()
        assert ended.wait(5)
    assert killed == [(os.getpid(), signal.SIGTERM)]
    assert "has stopped by itself" in caplog.text


def _die(*_: object, **__: object) -> float:
    raise MemoryError


def test_stopping_twice_or_before_the_start_is_no_fault(celery: Celery) -> None:
    action: Callable[[], None] = lambda: None  # noqa: E731
    beat = Beat(celery, LocalEntry("heartbeat", 1, action))
    beat.stop()
    beat.start()
    beat.stop()
    beat.stop()

"""The flusher's thread: what is collected leaves within a tick, leases are renewed, one fault silences nobody."""

from __future__ import annotations

import time
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from app.runs.flusher import Flusher
from tests.servers import wait_until


class Attempt:
    """Stands for an attempt: says when it was flushed and polled."""

    def __init__(self, *, broken: bool = False) -> None:
        self.run = type("Run", (), {"run_id": "r"})()
        self.flushed, self.polled = Event(), Event()
        self.broken = broken
        self.over = False

    def flush(self) -> None:
        self.flushed.set()
        if self.broken:
            raise RuntimeError("a fault of this attempt")

    def poll(self, *, ttl_ms: int) -> None:
        self.polled.set()


@pytest.fixture
def flusher() -> Iterator[Flusher]:
    flusher = Flusher(monotonic=time.monotonic, lease_ttl_s=0.3)
    yield flusher
    flusher.close()


def add(flusher: Flusher, attempt: Any) -> Any:
    flusher.add(attempt)
    return attempt


def test_what_was_collected_leaves_within_a_tick(flusher: Flusher) -> None:
    attempt = add(flusher, Attempt())
    flusher.poke()
    assert attempt.flushed.wait(5)


def test_no_poke_is_lost_in_a_tick_or_after_it() -> None:
    flusher = Flusher(monotonic=time.monotonic, lease_ttl_s=60)  # polls, which flush too, come once a second
    attempt = add(flusher, Attempt())
    for number in range(20):
        if number % 2:
            wait_until(lambda: not flusher._ticking, seconds=5, what="the thread sleeps until it is woken")
        attempt.flushed.clear()
        flusher.poke()
        assert attempt.flushed.wait(0.5)
    flusher.close()


def test_leases_are_renewed_without_being_asked(flusher: Flusher) -> None:
    attempt = add(flusher, Attempt())
    assert attempt.polled.wait(5)
    attempt.polled.clear()
    assert attempt.polled.wait(5)


def test_a_fault_of_one_attempt_silences_nobody_else(flusher: Flusher, caplog: pytest.LogCaptureFixture) -> None:
    broken, sound = add(flusher, Attempt(broken=True)), add(flusher, Attempt())
    for _ in range(2):
        sound.flushed.clear()
        flusher.poke()
        assert sound.flushed.wait(5)
    assert broken.flushed.is_set()
    assert "could not flush run r" in caplog.text


def test_an_attempt_that_was_discarded_is_left_alone(flusher: Flusher) -> None:
    gone, here = add(flusher, Attempt()), add(flusher, Attempt())
    flusher.discard(gone)
    flusher.poke()
    assert here.flushed.wait(5)
    assert here.polled.wait(5)
    gone.flushed.clear()
    here.flushed.clear()
    flusher.poke()
    assert here.flushed.wait(5)
    assert not gone.flushed.is_set()


def test_an_attempt_that_comes_after_a_quiet_time_is_looked_after(flusher: Flusher) -> None:
    first = add(flusher, Attempt())
    assert first.polled.wait(5)
    flusher.discard(first)
    second = add(flusher, Attempt())
    assert second.polled.wait(5)


def test_closing_ends_the_thread_and_may_come_first() -> None:
    never_used = Flusher(monotonic=time.monotonic, lease_ttl_s=1)
    never_used.close()
    used = Flusher(monotonic=time.monotonic, lease_ttl_s=1)
    used.add(Attempt())  # type: ignore[arg-type]
    used.close()
    assert used._thread is not None
    assert not used._thread.is_alive()


def test_an_attempt_whose_end_is_answered_is_looked_after_no_more(flusher: Flusher) -> None:
    ended, here = add(flusher, Attempt()), add(flusher, Attempt())
    ended.over = True
    flusher.poke()
    assert ended.flushed.wait(5)
    wait_until(lambda: flusher._attempts == {here}, seconds=5, what="the flusher has let it go")

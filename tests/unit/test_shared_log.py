"""One reading of a log for all readers who are at the same place."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Queue
from threading import Event as Flag
from time import monotonic_ns

import pytest

from admin.shared_log import SharedLog
from app.errors import ServerUnavailable
from app.models.event import START, Event, Place
from app.runs.log import LogPage

PATIENCE_S = 10


class SlowLog:
    """A log whose every reading goes on until the test lets it end."""

    def __init__(self) -> None:
        self.begun: Queue[Future[LogPage]] = Queue()
        self.asked: list[tuple[str, Place, int]] = []

    def read(self, run_id: str, after: Place, limit: int) -> LogPage:
        outcome: Future[LogPage] = Future()
        self.asked.append((run_id, after, limit))
        self.begun.put(outcome)
        return outcome.result(PATIENCE_S)

    def next_reading(self) -> Future[LogPage]:
        return self.begun.get(timeout=PATIENCE_S)


def page(seq: int) -> LogPage:
    return LogPage([Event("run", seq, 1, "log", 0)], over=False)


def waiting(log: SharedLog, readers: int, after: Place = START) -> Callable[[], bool]:
    """Return whether so many readers have come."""
    return lambda: (place := log._places.get(("run", after, 25))) is not None and place.readers == readers


def until(true: Callable[[], bool]) -> None:
    pause = Flag()
    for _ in range(1000):
        if true():
            return
        pause.wait(0.01)
    pytest.fail("it did not come true")


def test_readers_who_come_while_a_reading_goes_on_share_the_next_one() -> None:
    slow = SlowLog()
    log = SharedLog(slow.read)
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(log.read, "run", START, 25)
        early = slow.next_reading()
        others = [pool.submit(log.read, "run", START, 25) for _ in range(15)]
        until(waiting(log, 16))
        early.set_result(page(1))
        assert first.result(PATIENCE_S) == page(1)
        slow.next_reading().set_result(page(2))

        assert {other.result(PATIENCE_S).events[0].seq for other in others} == {2}
    assert len(slow.asked) == 2


def test_nobody_gets_a_reading_that_began_before_they_asked() -> None:
    """However the threads run: each page bears the time at which its reading began."""
    log = SharedLog(lambda *_: page(monotonic_ns()))

    def is_new_enough(_: int) -> bool:
        asked_at = monotonic_ns()
        return log.read("run", START, 25).events[0].seq >= asked_at

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(is_new_enough, range(3_000)))


def test_readers_at_other_places_do_not_wait_for_each_other() -> None:
    slow = SlowLog()
    log = SharedLog(slow.read)
    with ThreadPoolExecutor(2) as pool:
        stuck = pool.submit(log.read, "run", START, 25)
        held = slow.next_reading()
        other = pool.submit(log.read, "run", Place(7), 25)
        slow.next_reading().set_result(page(8))
        assert other.result(PATIENCE_S) == page(8)
        held.set_result(page(1))
        assert stuck.result(PATIENCE_S) == page(1)
    assert slow.asked == [("run", START, 25), ("run", Place(7), 25)]


def test_an_error_is_the_error_of_all_who_share_the_reading_and_of_nobody_later() -> None:
    slow = SlowLog()
    log = SharedLog(slow.read)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(log.read, "run", START, 25)
        early = slow.next_reading()
        others = [pool.submit(log.read, "run", START, 25) for _ in range(5)]
        until(waiting(log, 6))
        early.set_result(page(1))
        slow.next_reading().set_exception(ServerUnavailable("redis", "no answer in time"))
        for other in others:
            with pytest.raises(ServerUnavailable):
                other.result(PATIENCE_S)
        later = pool.submit(log.read, "run", START, 25)
        slow.next_reading().set_result(page(2))

        assert (first.result(PATIENCE_S), later.result(PATIENCE_S)) == (page(1), page(2))


def test_whoever_is_cut_off_while_reading_leaves_the_next_one_to_read() -> None:
    """A greenlet may be killed at any point; the others must not be left with nothing."""
    slow = SlowLog()
    log = SharedLog(slow.read)
    with ThreadPoolExecutor(3) as pool:
        killed = pool.submit(log.read, "run", START, 25)
        early = slow.next_reading()
        others = [pool.submit(log.read, "run", START, 25) for _ in range(2)]
        until(waiting(log, 3))
        early.set_exception(KeyboardInterrupt())
        slow.next_reading().set_exception(KeyboardInterrupt())
        slow.next_reading().set_result(page(2))

        assert isinstance(killed.exception(PATIENCE_S), KeyboardInterrupt)
        ends = [other.exception(PATIENCE_S) for other in others]
        assert sorted(type(end) for end in ends if end is not None) == [KeyboardInterrupt]
    assert not log._places


def test_nothing_is_kept_once_it_was_taken() -> None:
    log = SharedLog(lambda *_: page(1))

    assert log.read("run", START, 25) == page(1)

    assert not log._places

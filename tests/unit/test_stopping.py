"""How a worker stops: in time by itself, at its deadline, or cold."""

from __future__ import annotations

from threading import Thread
from typing import Any

from workers.stopping import Stopping, Word
from workers.waking import wake_when_done


class Worker:
    """Records what is done to it. Its clock stands still, unless hours are skipped."""

    def __init__(self, *, deadline_s: float = 10.0) -> None:
        self.done: list[str] = []
        self.now_s = 0.0
        self.stopping = Stopping(
            deadline_s=deadline_s,
            announce=lambda: self.done.append("announced"),
            give_back=lambda: self.done.append("handed back"),
            end=lambda: self.done.append("ended"),
            monotonic=lambda: self.now_s,
        )

    def stop(self, *words: Word) -> list[str]:
        for word in words:
            {"warm": self.stopping.warm, "cold": self.stopping.cold, "ended": self.stopping.ended}[word]()
        self.stopping.run()
        return self.done


def test_a_worker_that_stops_in_time_only_says_that_it_drains() -> None:
    assert Worker().stop("warm", "ended") == ["announced"]


def test_a_worker_that_is_told_twice_is_not_hurried() -> None:
    assert Worker().stop("warm", "warm", "warm", "ended") == ["announced"]


def test_what_still_executes_at_the_deadline_is_handed_back_and_the_worker_ends() -> None:
    assert Worker(deadline_s=0.0).stop("warm") == ["announced", "handed back", "ended"]


def test_the_deadline_counts_from_the_signal_and_not_from_the_announcement() -> None:
    worker = Worker(deadline_s=10.0)

    def slowly() -> None:
        worker.now_s += 60.0

    worker.stopping._announce = slowly
    assert worker.stop("warm") == ["handed back", "ended"]


def test_a_worker_that_has_ended_before_anybody_told_it_does_nothing() -> None:
    assert Worker().stop("ended") == []


def test_a_cold_stop_returns_when_everything_is_handed_back() -> None:
    worker = Worker()
    loop = Thread(target=worker.stopping.run)
    loop.start()
    worker.stopping.cold()
    assert worker.done == ["handed back"]
    worker.stopping.ended()
    loop.join(10)
    assert worker.done == ["handed back"]


def test_a_cold_stop_after_a_warm_one_does_not_wait_for_its_deadline() -> None:
    worker = Worker(deadline_s=3600.0)
    worker.stopping.warm()
    worker.stopping._words.put("cold")
    worker.stopping.ended()
    worker.stopping.run()
    assert worker.done == ["announced", "handed back"]


class Hub:
    def __init__(self) -> None:
        self.calls = 0

    def call_soon(self, callback: Any) -> None:
        callback()
        self.calls += 1


class Pool:
    """Executes at once, as a thread does later."""

    def on_apply(self, target: Any, args: Any = None, kwargs: Any = None, callback: Any = None, **_: Any) -> str:
        callback(target(*args))
        return "applied"


def test_a_task_that_ends_in_a_thread_wakes_the_loop_after_its_callback() -> None:
    pool, hub, seen = Pool(), Hub(), []
    wake_when_done(pool, hub)
    assert pool.on_apply(abs, (-3,), {}, callback=lambda answer: seen.append((answer, hub.calls))) == "applied"
    assert (seen, hub.calls) == ([(3, 0)], 1)

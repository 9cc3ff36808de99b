"""A run's log is one story, wherever it lies: live, moved to the ledger, or half out of reach."""

from __future__ import annotations

from typing import Any

import pytest

from app.errors import NotFound, ServerUnavailable
from app.live.memory import MemoryLive
from app.models.event import START, Place
from app.models.run import Run, RunStatus
from app.runs.log import LogPage
from app.runs.recovery import make_anew
from app.runs.rescue import send_nudge
from tests.integration.flows import counting
from tests.memory_world import MemoryWorld


@pytest.fixture
def world() -> MemoryWorld:
    world = MemoryWorld()
    world.deploy("counting", counting("n"), only=(1, ["worker"]))
    world.beat("worker")
    return world


@pytest.fixture
def ended(world: MemoryWorld) -> Run:
    """A run that has ended and is on record with all its events; its live state is still there."""
    run = world.runs.start("counting", {})
    world.work()
    world.housekeeping.round()
    return world.run(run)


def seqs(page: LogPage) -> list[int]:
    return [event.seq for event in page.events]


def story(world: MemoryWorld, run: Run, limit: int = 2) -> list[int]:
    """Read page by page as long as there is more; return the numbers."""
    found: list[int] = []
    while True:
        page = world.runs.log(run.run_id, after=Place(len(found)), limit=limit)
        found += seqs(page)
        if not page.more:
            return found


def expire(world: MemoryWorld, run: Run) -> None:
    world.live.archived(run.run_id, keep_ms=-1)
    assert world.live.get(run.run_id) is None


def take_redis(world: MemoryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("get", "events"):
        monkeypatch.setattr(world.live, name, _away)


def _away(*_: Any, **__: Any) -> None:
    raise ServerUnavailable("redis", "no answer in time")


def test_a_queued_run_has_one_event_and_is_not_over(world: MemoryWorld) -> None:
    run = world.runs.start("counting", {})

    page = world.runs.log(run.run_id)
    assert (seqs(page), page.over, page.more) == ([1], False, False)
    page = world.runs.log(run.run_id, after=Place(1))
    assert (seqs(page), page.over, page.more) == ([], False, False)


@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
@pytest.mark.parametrize("where", ["live", "ledger", "ledger while Redis is away"])
def test_an_ended_run_tells_the_same_story_from_anywhere(
    world: MemoryWorld, ended: Run, limit: int, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "ledger":
        expire(world, ended)
    elif where != "live":
        take_redis(world, monkeypatch)

    assert story(world, ended, limit) == list(range(1, ended.seq + 1))
    assert world.runs.log(ended.run_id, after=Place(ended.seq - 1)).over
    assert world.runs.log(ended.run_id, after=Place(ended.seq)) == LogPage((), over=True)


def test_a_log_may_move_to_the_ledger_between_two_pages(world: MemoryWorld, ended: Run) -> None:
    first = world.runs.log(ended.run_id, limit=2)
    expire(world, ended)

    rest = world.runs.log(ended.run_id, after=Place(2))

    assert seqs(first) + seqs(rest) == list(range(1, ended.seq + 1))


def test_the_ledger_is_not_asked_while_a_run_is_live(world: MemoryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    run = world.runs.start("counting", {})
    for name in ("events", "get_run"):
        monkeypatch.setattr(world.store, name, lambda *_, **__: pytest.fail("the ledger was asked"))

    assert seqs(world.runs.log(run.run_id)) == [1]
    assert seqs(world.runs.log(run.run_id, after=Place(1))) == []


def test_nothing_new_is_never_a_guess(world: MemoryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome is in the ledger and its events are not yet, and then Redis goes away."""
    run = world.runs.start("counting", {})
    world.work()
    run = world.run(run)
    world.store.mirror_run(run)
    world.store.append_events(run.run_id, world.live.events(run.run_id, limit=2))
    take_redis(world, monkeypatch)

    page = world.runs.log(run.run_id)
    assert (seqs(page), page.over, page.more) == ([1, 2], False, True)
    with pytest.raises(ServerUnavailable):
        world.runs.log(run.run_id, after=Place(2))


def test_a_story_whose_rest_was_lost_with_redis_is_over(world: MemoryWorld) -> None:
    run = Run("r1", "counting", "only", "f", "v", "worker", created_ms=1, status=RunStatus.FAILED, seq=7)
    world.store.insert_run(run)

    assert world.runs.log("r1", after=Place(3)) == LogPage((), over=True)


def test_an_open_run_on_record_without_a_live_state_is_waited_for(world: MemoryWorld) -> None:
    world.store.insert_run(Run("r1", "counting", "only", "f", "v", "worker", created_ms=1))

    assert world.runs.log("r1") == LogPage((), over=False)


@pytest.mark.parametrize("after", [0, 3])
def test_an_unknown_run_has_no_log(world: MemoryWorld, after: int) -> None:
    with pytest.raises(NotFound):
        world.runs.log("nothing", after=Place(after))


# --- when Redis has lost the run ---------------------------------------------------------------------------------


@pytest.fixture
def anew(world: MemoryWorld) -> Run:
    """A run that had completed when Redis lost it, and that was made anew; it has one event."""
    run = world.runs.start("counting", {})
    world.work()
    return lose(world, run)


def lose(world: MemoryWorld, run: Run) -> Run:
    known = world.run(run)
    assert isinstance(world.live, MemoryLive)
    world.live.lose()
    assert make_anew(world.store, world.live, known.with_(status=RunStatus.QUEUED))
    return world.run(run)


@pytest.mark.parametrize("after", [1, 2, 5, 99])
def test_a_place_in_a_lost_story_is_answered_with_the_new_one(world: MemoryWorld, anew: Run, after: int) -> None:
    page = world.runs.log(anew.run_id, after=Place(after))

    assert (seqs(page), page.epoch, page.reset, page.over) == ([1], 1, True, False)
    assert page.place(Place(after)) == Place(1, 1)


def test_a_reader_with_nothing_has_nothing_to_forget(world: MemoryWorld, anew: Run) -> None:
    for place in (START, Place(0, 1), Place(0, 7)):
        page = world.runs.log(anew.run_id, after=place)
        assert (seqs(page), page.epoch, page.reset) == ([1], 1, False)


def test_a_reader_of_the_new_story_reads_on(world: MemoryWorld, anew: Run) -> None:
    page = world.runs.log(anew.run_id, after=Place(1, 1))
    assert page == LogPage((), over=False, epoch=1)
    assert page.place(Place(1, 1)) == Place(1, 1)

    send_nudge(world.nudges, anew)
    world.work()

    page = world.runs.log(anew.run_id, after=Place(1, 1))
    assert seqs(page)[0] == 2
    assert (page.over, page.reset) == (True, False)


@pytest.mark.parametrize("where", ["live", "ledger", "ledger while Redis is away"])
def test_a_lost_story_is_known_as_such_wherever_the_new_one_lies(
    world: MemoryWorld, anew: Run, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.live.cancel(anew.run_id)
    world.housekeeping.round()
    if where == "ledger":
        expire(world, anew)
    elif where != "live":
        take_redis(world, monkeypatch)

    for after in (1, 2, 3):
        page = world.runs.log(anew.run_id, after=Place(after))
        assert (seqs(page), page.epoch, page.reset, page.over) == ([1, 2], 1, True, True)
    assert world.runs.log(anew.run_id, after=Place(2, 1)) == LogPage((), over=True, epoch=1)


def test_a_run_that_is_not_back_yet_keeps_its_readers_where_they_are(world: MemoryWorld, anew: Run) -> None:
    """Nobody has told the ledger yet that the run is in its second epoch, and Redis loses it again."""
    assert isinstance(world.live, MemoryLive)
    world.live.lose()

    page = world.runs.log(anew.run_id, after=Place(1, 1))

    assert page == LogPage((), over=False, epoch=1)
    assert page.place(Place(1, 1)) == Place(1, 1)


def test_a_run_lost_between_two_questions_to_redis_is_noticed(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = world.runs.start("counting", {})
    events = world.live.events

    def lost_after_the_answer(run_id: str, **options: Any) -> Any:
        answer = events(run_id, **options)
        monkeypatch.setattr(world.live, "events", events)
        lose(world, run)
        return answer

    monkeypatch.setattr(world.live, "events", lost_after_the_answer)
    page = world.runs.log(run.run_id, after=Place(1))

    assert (seqs(page), page.epoch, page.reset) == ([1], 1, True)

"""Events in the ledger: written by whoever comes, in any overlap, and read as 1..n."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.models.event import RUN_COMPLETED, Event
from app.ports import Store
from app.store.memory import MemoryStore
from app.store.records import CHUNK_CHARS, CHUNK_EVENTS, event_chunks, events_of
from tests.contract.store.samples import AWKWARD, events


def test_events_come_back_as_they_were(store: Store) -> None:
    written = [
        Event("r1", 1, 1, "run.queued", 1_796_000_000_000, None, AWKWARD),
        Event("r1", 2, 2, "something.new", 1_796_000_000_001, "n", None),
        Event("r1", 3, 2, RUN_COMPLETED, 1_796_000_000_002, None, {"output": [None, {}]}),
    ]
    store.append_events("r1", written)
    assert store.events("r1") == written
    assert store.events("r2") == []
    anew = [Event("r2", seq, 2, "log", 0, epoch=1) for seq in (1, 2)]
    store.append_events("r2", anew)
    assert store.events("r2") == anew


def test_nothing_appended_is_nothing_stored(store: Store) -> None:
    store.append_events("r1", [])
    assert store.events("r1") == []


def test_events_are_read_on_from_any_number_in_pages(store: Store) -> None:
    for first, last in ((1, 3), (4, 4), (5, 9)):
        store.append_events("r1", events("r1", first, last))
    for after in range(10):
        assert [event.seq for event in store.events("r1", after=after)] == list(range(after + 1, 10))
        assert [event.seq for event in store.events("r1", after=after, limit=2)] == list(range(after + 1, 10))[:2]
    assert store.events("r1", after=99) == []


@pytest.mark.parametrize("again", [(1, 5), (1, 3), (2, 4), (5, 5), (1, 8), (4, 8), (6, 8)])
def test_what_is_stored_is_left_as_it_is_however_the_next_call_overlaps(store: Store, again: tuple[int, int]) -> None:
    stored = events("r1", 1, 5, text="first")
    store.append_events("r1", stored)
    store.append_events("r1", events("r1", *again, text="second"))
    assert store.events("r1") == stored + events("r1", 6, again[1], text="second")


def test_runs_do_not_mix(store: Store) -> None:
    store.append_events("r1", events("r1", 1, 2))
    store.append_events("r1:1", events("r1:1", 1, 3))
    assert len(store.events("r1")) == 2
    assert len(store.events("r1:1")) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        events("r1", 3, 4),
        events("r1", 5, 5),
        events("r1", 1, 1) + events("r1", 3, 3),
        list(reversed(events("r1", 1, 2))),
    ],
)
def test_a_hole_is_refused_since_it_could_never_be_filled(store: Store, wrong: list[Event]) -> None:
    store.append_events("r1", events("r1", 1, 1))
    with pytest.raises(ValueError, match="run r1"):
        store.append_events("r1", wrong)
    assert store.events("r1") == events("r1", 1, 1)


def test_many_writers_that_overlap_leave_each_event_once(store: Store, at_once) -> None:
    def mirror(step: int) -> None:
        for first in range(1, 61, step):
            store.append_events("r1", events("r1", first, min(first + step - 1, 60)))

    at_once([partial(mirror, step) for step in (1, 2, 3, 7, 11, 20, 60, 60)])
    assert store.events("r1") == events("r1", 1, 60)


def test_a_long_and_heavy_story_is_stored_in_one_call(store: Store) -> None:
    told = events("r1", 1, 2300) + events("r1", 2301, 2306, text="漢" * 700_000)
    store.append_events("r1", told)
    assert store.events("r1", limit=10_000) == told


@given(sizes=st.lists(st.sampled_from([0, 10, CHUNK_CHARS // 3, CHUNK_CHARS + 1]), max_size=8))
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
def test_chunks_hold_every_event_once_and_stay_small(sizes: list[int]) -> None:
    told = [Event("r", seq, 1, "log", 0, None, {"text": "x" * size}) for seq, size in enumerate(sizes, start=1)]
    chunks = event_chunks("r", told)
    assert [event for chunk in chunks for event in events_of(chunk)] == told
    for chunk in chunks:
        held = events_of(chunk)
        assert (chunk["_id"], chunk["last"]) == (f"r:{held[0].seq}", held[-1].seq)
        assert sum(len(event.data["text"]) for event in held[:-1] if event.data) < CHUNK_CHARS


def test_a_chunk_holds_a_bounded_number_of_events() -> None:
    assert [chunk["last"] for chunk in event_chunks("r", events("r", 1, 2 * CHUNK_EVENTS + 1))] == [1000, 2000, 2001]


@given(calls=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 6)), max_size=12))
@settings(deadline=None, max_examples=60)
def test_after_any_calls_the_stored_events_are_1_to_n(calls: list[tuple[int, int]]) -> None:
    store = MemoryStore()
    reach = 0
    for first, more in calls:
        if first > reach + 1:
            with pytest.raises(ValueError, match="must join"):
                store.append_events("r", events("r", first, first + more))
        else:
            store.append_events("r", events("r", first, first + more))
            reach = max(reach, first + more)
        assert store.events("r") == events("r", 1, reach)


def test_dropped_events_make_room_for_another_story(store: Store) -> None:
    store.append_events("r1", events("r1", 1, 5))
    store.append_events("r2", events("r2", 1, 2))
    store.drop_events("r1")
    store.drop_events("none")
    assert store.events("r1") == []
    anew = [Event("r1", seq, 2, "log", 0, epoch=1) for seq in (1, 2)]
    store.append_events("r1", anew)
    assert store.events("r1") == anew
    assert len(store.events("r2")) == 2

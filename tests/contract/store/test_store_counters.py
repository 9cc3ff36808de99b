"""Counters of ``core/count``: each packet once, however often and from wherever it is counted."""

from __future__ import annotations

from functools import partial

from app.ports import Store


def test_a_counter_begins_at_nothing(store: Store) -> None:
    assert store.counter("k") == 0


def test_each_packet_counts_once(store: Store) -> None:
    assert store.count("k", "p1") == 1
    assert store.count("k", "p2") == 2
    assert store.count("k", "p1") == 2
    assert store.counter("k") == 2


def test_counters_do_not_mix(store: Store) -> None:
    assert store.count("k", "p") == 1
    assert store.count("k:p", "") == 1
    assert store.count("k.$", "p") == 1
    assert (store.counter("k"), store.counter("k:p"), store.counter("k.$"), store.counter("")) == (1, 1, 1, 0)


def test_twenty_threads_with_one_packet_count_it_once(store: Store, at_once) -> None:
    assert set(at_once([partial(store.count, "k", "p")] * 20)) == {1}
    assert store.counter("k") == 1


def test_twenty_threads_with_packets_of_their_own_count_each(store: Store, at_once) -> None:
    answers = at_once([partial(store.count, "k", f"p{n // 2}") for n in range(20)])
    assert store.counter("k") == 10
    assert set(answers) <= set(range(1, 11))
    assert max(answers) == 10

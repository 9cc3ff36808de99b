"""Idempotency keys of nodes: one executes, the others wait or are given what came of it, until its time is over."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from app.ports import KeyClaim, Store
from app.store.memory import MemoryStore
from app.store.mongo import MongoStore

MINE, TAKEN = KeyClaim("mine"), KeyClaim("taken")


class Time:
    """A clock that a test sets."""

    ms = 4_000_000_000_000  # so far ahead that no server forgets by its own clock

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture(params=["memory", "mongo"])
def store(request: pytest.FixtureRequest, time: Time) -> Iterator[Store]:
    """As the suite's, with a clock of the test's."""
    if request.param == "memory":
        made: Store = MemoryStore(time)
    else:
        made = MongoStore(request.getfixturevalue("mongo_url"), timeout_s=10, clock=time)
    made.prepare()
    yield made
    made.close()


def test_one_holder_at_a_time(store: Store) -> None:
    assert store.claim_key("k", holder="a", ttl_ms=1000) == MINE
    assert store.claim_key("k", holder="b", ttl_ms=1000) == TAKEN
    assert store.claim_key("other", holder="b", ttl_ms=1000) == MINE


def test_the_holder_may_claim_again(store: Store, time: Time) -> None:
    assert store.claim_key("k", holder="a", ttl_ms=1000) == MINE
    time.ms += 900
    assert store.claim_key("k", holder="a", ttl_ms=1000) == MINE
    time.ms += 900
    assert store.claim_key("k", holder="b", ttl_ms=1000) == TAKEN


def test_what_was_kept_is_given_to_everybody_for_its_time(store: Store, time: Time) -> None:
    store.claim_key("k", holder="a", ttl_ms=1000)
    assert store.keep_output("k", holder="a", output='{"a.$b":1}', ttl_ms=60_000)
    time.ms += 59_999
    for holder in ("a", "b"):
        assert store.claim_key("k", holder=holder, ttl_ms=1000) == KeyClaim("kept", '{"a.$b":1}')
    time.ms += 1
    assert store.claim_key("k", holder="b", ttl_ms=1000) == MINE
    assert store.claim_key("k", holder="a", ttl_ms=1000) == TAKEN


def test_a_claim_whose_time_is_over_is_free(store: Store, time: Time) -> None:
    store.claim_key("k", holder="a", ttl_ms=1000)
    time.ms += 1000
    assert store.claim_key("k", holder="b", ttl_ms=1000) == MINE
    assert not store.keep_output("k", holder="a", output="1", ttl_ms=1000)
    store.release_key("k", holder="a")
    assert store.claim_key("k", holder="a", ttl_ms=1000) == TAKEN


def test_what_nobody_claimed_cannot_be_kept(store: Store) -> None:
    assert not store.keep_output("k", holder="a", output="1", ttl_ms=1000)


def test_a_released_key_is_free_and_what_is_kept_stays(store: Store) -> None:
    store.claim_key("k", holder="a", ttl_ms=1000)
    store.release_key("k", holder="a")
    store.release_key("k", holder="a")
    assert store.claim_key("k", holder="b", ttl_ms=1000) == MINE
    store.keep_output("k", holder="b", output="null", ttl_ms=1000)
    store.release_key("k", holder="b")
    assert store.claim_key("k", holder="a", ttl_ms=1000) == KeyClaim("kept", "null")


def test_of_many_claims_at_once_one_is_granted(store: Store, at_once) -> None:
    answers = at_once([partial(store.claim_key, "k", holder=str(n), ttl_ms=60_000) for n in range(16)])
    assert sorted(claim.state for claim in answers) == ["mine", *["taken"] * 15]


def test_of_many_claims_of_an_expired_key_one_is_granted(store: Store, time: Time, at_once) -> None:
    store.claim_key("k", holder="gone", ttl_ms=10)
    time.ms += 10
    answers = at_once([partial(store.claim_key, "k", holder=str(n), ttl_ms=60_000) for n in range(16)])
    assert sorted(claim.state for claim in answers) == ["mine", *["taken"] * 15]

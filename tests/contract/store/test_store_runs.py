"""The ledger: runs, their idempotency keys, and how they follow the live state."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest

from app.models.run import Run, RunError, RunStatus, WorkerRef
from app.ports import Store
from tests.contract.store.samples import AWKWARD, run

FULL = run(
    "r1",
    status=RunStatus.FAILED,
    attempt=3,
    losses=2,
    input=AWKWARD,
    meta=AWKWARD | {"session_id": 7},
    output=[AWKWARD],
    error=RunError("PERMANENT", "é", 3, "n"),
    worker=WorkerRef("i", "worker@h", "worker"),
    explain=AWKWARD,
    started_ms=1,
    ended_ms=2,
    waiting_for="saturated",
    retry_of="r0",
    priority=9,
    expires_ms=3,
    seq=4,
    rev=5,
    not_before_ms=6,
    retries=7,
    epoch=8,
    excluded=("i", "j"),
    cancel_requested=True,
    validation="strict",
    target_roles=("worker", "gpu"),
    idempotency_key="k",
    body_hash="h",
    input_in_ledger=True,
    schema=2,
)


def test_the_sample_has_no_field_at_its_default() -> None:
    unset = [
        field.name
        for field in dataclasses.fields(Run)
        if field.default is not dataclasses.MISSING and getattr(FULL, field.name) == field.default
    ]
    assert unset == []


def test_a_run_comes_back_with_every_field(store: Store) -> None:
    assert store.insert_run(FULL) is None
    assert store.get_run("r1") == FULL
    assert store.get_run("r2") is None


def test_what_comes_back_is_nobody_elses(store: Store) -> None:
    store.insert_run(run("r1", input={"list": [1]}))
    first = store.get_run("r1")
    assert first is not None
    first.input["list"].append(2)
    assert store.get_run("r1") == run("r1", input={"list": [1]})


def test_the_same_insert_again_changes_nothing_and_is_no_second_run(store: Store) -> None:
    for one in (run("r1"), run("r2", idempotency_key="k", body_hash="h")):
        assert store.insert_run(one) is None
        assert store.insert_run(one) is None
        assert store.get_run(one.run_id) == one


def test_a_used_idempotency_key_gives_the_run_that_has_it(store: Store) -> None:
    first = run("r1", idempotency_key="k", body_hash="h", input={"n": 1})
    assert store.insert_run(first) is None
    assert store.insert_run(run("r2", idempotency_key="k", body_hash="other")) == first
    assert store.get_run("r2") is None
    assert store.find_run("shop", "k") == first


def test_keys_count_within_their_deployment(store: Store) -> None:
    assert store.insert_run(run("r1", idempotency_key="k")) is None
    assert store.insert_run(run("r2", idempotency_key="k", deployment_id="other")) is None
    assert store.insert_run(run("r3", idempotency_key="K")) is None
    assert store.find_run("shop", "none") is None
    found = store.find_run("other", "k")
    assert found is not None
    assert found.run_id == "r2"


def test_runs_without_a_key_are_never_the_same(store: Store) -> None:
    assert store.insert_run(run("r1")) is None
    assert store.insert_run(run("r2")) is None


def test_fifty_threads_with_one_key_make_one_run(store: Store, at_once) -> None:
    runs = [run(f"r{n}", idempotency_key="k") for n in range(50)]
    answers = at_once([partial(store.insert_run, one) for one in runs])
    winner = runs[answers.index(None)]
    assert [answer for answer in answers if answer is not None] == [winner] * 49
    assert [one.run_id for one in runs if store.get_run(one.run_id) is not None] == [winner.run_id]


def test_the_mirror_moves_forward_only(store: Store) -> None:
    store.insert_run(run("r1"))
    running = run("r1", status=RunStatus.RUNNING, rev=2, seq=2)
    assert store.mirror_run(running)
    assert not store.mirror_run(running)
    assert not store.mirror_run(run("r1", rev=1))
    assert store.get_run("r1") == running


@pytest.mark.parametrize("end", [RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED])
def test_an_ended_record_never_changes(store: Store, end: RunStatus) -> None:
    store.insert_run(run("r1"))
    ended = run("r1", status=end, rev=3, output={"a.b": 1}, ended_ms=9)
    assert store.mirror_run(ended)
    assert not store.mirror_run(run("r1", status=RunStatus.RUNNING, rev=4))
    assert not store.mirror_run(run("r1", status=RunStatus.COMPLETED, rev=5))
    assert store.get_run("r1") == ended


def test_the_mirror_keeps_input_and_idempotency(store: Store) -> None:
    store.insert_run(run("r1", input=AWKWARD, idempotency_key="k", body_hash="h", input_in_ledger=True))
    assert store.mirror_run(run("r1", rev=1, input_in_ledger=True))
    stored = store.get_run("r1")
    assert stored is not None
    assert (stored.input, stored.idempotency_key, stored.body_hash) == (AWKWARD, "k", "h")
    assert stored.rev == 1
    assert store.find_run("shop", "k") == stored


def test_an_unknown_run_is_not_mirrored(store: Store) -> None:
    assert not store.mirror_run(run("r1", rev=1))
    assert store.get_run("r1") is None


def test_of_many_mirrors_at_once_the_newest_stays(store: Store, at_once) -> None:
    store.insert_run(run("r1"))
    at_once([partial(store.mirror_run, run("r1", rev=rev, seq=rev)) for rev in range(1, 21)])
    assert store.get_run("r1") == run("r1", rev=20, seq=20)


def test_of_two_ends_at_once_one_stays(store: Store, at_once) -> None:
    store.insert_run(run("r1"))
    ends = [run("r1", rev=rev, status=RunStatus.COMPLETED, output=rev) for rev in range(1, 11)]
    changed = at_once([partial(store.mirror_run, end) for end in ends])
    assert sum(changed) == 1
    assert store.get_run("r1") == ends[changed.index(True)]


def test_a_refused_run_is_on_record_and_its_key_is_free_again(store: Store) -> None:
    store.insert_run(run("r1", idempotency_key="k", body_hash="h"))
    store.refuse_run(run("r1", status=RunStatus.FAILED, rev=1, error=RunError("not_accepted", "no", 1)))
    refused = store.get_run("r1")
    assert refused is not None
    assert refused.status is RunStatus.FAILED
    assert refused.error == RunError("not_accepted", "no", 1)
    assert store.find_run("shop", "k") is None
    assert store.insert_run(run("r2", idempotency_key="k", body_hash="h")) is None


def test_a_run_that_has_moved_on_is_not_refused(store: Store) -> None:
    store.insert_run(run("r1", idempotency_key="k"))
    ended = run("r1", status=RunStatus.COMPLETED, rev=4, idempotency_key="k")
    store.mirror_run(ended)
    store.refuse_run(run("r1", status=RunStatus.FAILED, rev=1))
    assert store.find_run("shop", "k") == ended
    store.refuse_run(run("none", status=RunStatus.FAILED, rev=1))


def test_a_cancel_is_noted_on_an_open_record_and_stays_noted(store: Store) -> None:
    def noted(run_id: str) -> bool:
        found = store.get_run(run_id)
        assert found is not None
        return found.cancel_requested

    store.insert_run(run("r1"))
    store.request_cancel("r1")
    store.request_cancel("none")
    assert noted("r1")
    store.mirror_run(run("r1", rev=2, status=RunStatus.RUNNING))
    assert noted("r1")
    store.insert_run(run("r2", status=RunStatus.COMPLETED))
    store.request_cancel("r2")
    assert not noted("r2")


def test_ended_runs_are_told_from_open_and_unknown_ones(store: Store) -> None:
    for status in RunStatus:
        store.insert_run(run(status.value, status=status))
    asked = [*(status.value for status in RunStatus), "none"]
    assert store.ended_runs(asked) == {"completed", "failed", "cancelled"}
    assert store.ended_runs([]) == set()

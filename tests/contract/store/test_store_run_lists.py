"""Lists of runs: filters, order, and pages that hold while runs come and change."""

from __future__ import annotations

import base64
import random
import re

import pytest

from app.errors import BadRequest
from app.models.run import Run, RunStatus
from app.ports import RunFilter, Store
from tests.contract.store.samples import run

EVERY = RunFilter()
HOUR = 3_600_000


def walk(store: Store, where: RunFilter = EVERY, *, limit: int = 3) -> list[Run]:
    """Read all pages."""
    found: list[Run] = []
    page = store.list_runs(where, limit=limit)
    while True:
        assert len(page.items) <= limit
        found += page.items
        if page.next is None:
            return found
        page = store.list_runs(where, after=page.next, limit=limit)


def fill(store: Store, count: int, *, seed: int = 1) -> list[Run]:
    """Insert runs of all kinds over years and within one millisecond; return them in the order of the list."""
    rng = random.Random(seed)
    now = 1_796_000_000_000
    runs = []
    for n in range(count):
        age = rng.choice([0, 0, 1, 999, 1000, 1001, 9000, HOUR, 24 * HOUR, 2000 * HOUR, 20_000 * HOUR])
        created = now - age
        one = run(
            f"r{rng.randrange(16**8):08x}{n}",
            created_ms=created,
            deployment_id=rng.choice(["shop", "mail"]),
            variant=rng.choice(["main", "canary"]),
            target_role=rng.choice(["worker", "gpu-worker"]),
            status=rng.choice(list(RunStatus)),
            meta=rng.choice([{}, {"session_id": 7}, {"session_id": "7"}, {"session_id": "s.$"}]),
        )
        store.insert_run(one)
        runs.append(one)
    return sorted(runs, key=lambda one: (one.created_ms, one.run_id), reverse=True)


def test_runs_are_listed_newest_first_and_whole(store: Store) -> None:
    runs = fill(store, 21)
    assert walk(store) == runs
    assert walk(store, limit=2) == runs
    page = store.list_runs(EVERY)
    assert page.items == runs
    assert page.next is None
    assert store.list_runs(EVERY, limit=21).next is None


def test_an_empty_ledger_has_an_empty_list(store: Store) -> None:
    page = store.list_runs(EVERY)
    assert (page.items, page.next) == ([], None)


def test_every_filter_alone_and_all_pairs_of_filters_show_exactly_their_runs(store: Store) -> None:
    runs = fill(store, 32)
    values = {
        "deployment": "shop",
        "variant": "canary",
        "role": "gpu-worker",
        "status": RunStatus.FAILED,
        "session": "7",
    }
    of = {
        "deployment": lambda one: one.deployment_id,
        "variant": lambda one: one.variant,
        "role": lambda one: one.target_role,
        "status": lambda one: one.status,
        "session": lambda one: str(one.meta["session_id"]) if "session_id" in one.meta else None,
    }
    filters = [(a, b) for a in values for b in values] + [tuple(values)]
    for names in filters:
        expected = [one for one in runs if all(of[name](one) == values[name] for name in names)]
        assert walk(store, RunFilter(**{name: values[name] for name in names}), limit=9) == expected, names
        assert expected or len(names) > 2


def test_a_session_is_compared_as_text(store: Store) -> None:
    store.insert_run(run("r1", meta={"session_id": 7}))
    store.insert_run(run("r2", meta={"session_id": "7"}))
    store.insert_run(run("r3", meta={"session_id": None}))
    assert {one.run_id for one in walk(store, RunFilter(session="7"))} == {"r1", "r2"}
    assert walk(store, RunFilter(session="None")) == []


def test_a_filter_follows_the_mirror(store: Store) -> None:
    store.insert_run(run("r1"))
    store.mirror_run(run("r1", status=RunStatus.COMPLETED, target_role="gpu-worker", rev=1))
    assert walk(store, RunFilter(status=RunStatus.QUEUED)) == []
    assert walk(store, RunFilter(role="worker")) == []
    assert [one.run_id for one in walk(store, RunFilter(status=RunStatus.COMPLETED, role="gpu-worker"))] == ["r1"]


def test_pages_neither_skip_nor_repeat_while_runs_are_added(store: Store) -> None:
    old = fill(store, 20)
    seen: list[str] = []
    page = store.list_runs(EVERY, limit=4)
    number = 0
    while True:
        seen += [one.run_id for one in page.items]
        for _ in range(3):
            number += 1
            store.insert_run(run(f"new{number}", created_ms=1_796_000_001_000 + number))
        if page.next is None:
            break
        page = store.list_runs(EVERY, after=page.next, limit=4)
    assert seen == [one.run_id for one in old]


def test_a_mirror_that_corrects_the_time_of_creation_moves_no_run_in_the_list(store: Store) -> None:
    for n in range(6):
        store.insert_run(run(f"r{n}", created_ms=1_796_000_000_000 + n))
    first = store.list_runs(EVERY, limit=3)
    for n in range(6):
        assert store.mirror_run(run(f"r{n}", created_ms=1_796_000_000_000 - 10 * n, rev=1))
    second = store.list_runs(EVERY, after=first.next, limit=3)
    assert [one.run_id for one in first.items + second.items] == ["r5", "r4", "r3", "r2", "r1", "r0"]
    assert second.items[0].created_ms == 1_796_000_000_000 - 20


def test_a_cursor_is_safe_in_a_url_and_stands_for_itself(store: Store) -> None:
    for n in range(4):
        store.insert_run(run(f"r?/+{n}~é"))
    page = store.list_runs(EVERY, limit=2)
    assert page.next is not None
    assert re.fullmatch(r"[A-Za-z0-9_-]+", page.next)
    rest = store.list_runs(EVERY, after=page.next, limit=2)
    assert [one.run_id for one in rest.items] == ["r?/+1~é", "r?/+0~é"]


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "!!!!",
        "é",
        "MTIz",
        "a" * 5000,
        base64.urlsafe_b64encode(b"000001796000000.r").decode() + "\n",
        base64.urlsafe_b64encode(b"\xff" * 20).decode(),
        base64.urlsafe_b64encode("٠٠٠٠٠١٧٩٦٠٠٠٠٠٠.r".encode()).decode(),
    ],
)
def test_a_cursor_that_is_none_of_ours_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(BadRequest, match="no cursor") as refused:
        store.list_runs(EVERY, after=cursor)
    assert refused.value.faults[0].at == "/after"

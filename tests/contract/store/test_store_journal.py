"""The journal of a run: pages in a chain, each number one writer's, so that who was replaced writes nothing."""

from __future__ import annotations

from functools import partial

from app.ports import JournalPage, Store
from tests.contract.store.samples import AWKWARD


def page(number: int, *, attempt: int = 1, writer: str = "t1", text: str = "{}") -> JournalPage:
    return JournalPage(number, attempt, writer, text)


def test_a_run_without_a_journal_has_no_pages(store: Store) -> None:
    assert store.journal("r") == []


def test_pages_come_back_in_order_as_they_were(store: Store) -> None:
    pages = [page(number, attempt=number, text=str(AWKWARD)) for number in range(1, 13)]
    assert all(store.journal_put("r", each) for each in pages)
    assert store.journal("r") == pages


def test_the_journals_of_runs_do_not_mix(store: Store) -> None:
    assert store.journal_put("r", page(1))
    assert store.journal_put("r:1", page(1, writer="t2"))
    assert store.journal("r") == [page(1)]


def test_a_page_whose_answer_got_lost_is_written_once(store: Store) -> None:
    assert store.journal_put("r", page(1, text="[1]"))
    assert store.journal_put("r", page(1, text="[1]"))
    assert store.journal("r") == [page(1, text="[1]")]


def test_a_number_that_another_writer_has_is_refused_whatever_the_attempt(store: Store) -> None:
    assert store.journal_put("r", page(1, attempt=2, writer="t2"))
    for attempt in (1, 2, 3):
        assert not store.journal_put("r", page(1, attempt=attempt, writer="t1", text="[]"))
    assert store.journal("r") == [page(1, attempt=2, writer="t2")]


def test_of_many_writers_of_one_page_one_wins(store: Store, at_once) -> None:
    answers = at_once([partial(store.journal_put, "r", page(1, writer=f"t{n}")) for n in range(12)])
    assert answers.count(True) == 1
    assert [each.writer for each in store.journal("r")] == [f"t{answers.index(True)}"]


def test_a_page_of_thirteen_megabytes_fits(store: Store) -> None:
    assert store.journal_put("r", page(1, text="x" * 13_000_000))
    assert len(store.journal("r")[0].text) == 13_000_000


def test_a_dropped_journal_is_gone(store: Store) -> None:
    assert store.journal_put("r", page(1))
    assert store.journal_put("s", page(1))
    store.drop_journal("r")
    store.drop_journal("r")
    assert store.journal("r") == []
    assert len(store.journal("s")) == 1

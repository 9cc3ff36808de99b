"""Flows and their immutable versions."""

from __future__ import annotations

from functools import partial

import pytest

from app.errors import BadRequest, Conflict, NotFound
from app.ports import Store
from tests.contract.store.samples import AWKWARD, LATER, NOW, save


def test_a_version_comes_back_as_it_was_saved(store: Store) -> None:
    version, created = save(store, "shop", AWKWARD, title="Shop")
    assert created
    assert version.number == 1
    assert version.version_id == version.content_hash[:16]
    again = store.get_version("shop", version.version_id)
    assert again == version
    assert again.document == {"content": AWKWARD}
    assert list(again.document["content"]["order"]) == ["z", "a", "m"]
    assert again.needs == (("core/log",), ("a/b", "c/d"))
    assert again.flow_name == "shop"
    assert again.created_at == NOW


def test_a_flow_appears_with_its_first_version(store: Store) -> None:
    assert store.get_flow("shop") is None
    save(store, "shop", 1, title="Shop")
    flow = store.get_flow("shop")
    assert flow is not None
    assert (flow.flow_id, flow.title, flow.versions, flow.published_version_id) == ("shop", "Shop", 1, None)
    assert (flow.created_at, flow.updated_at) == (NOW, NOW)


def test_the_same_document_makes_no_second_version(store: Store) -> None:
    first, _ = save(store, "shop", 1, title="Shop")
    again, created = save(store, "shop", 1, title="Shop", now=LATER)
    assert not created
    assert again == first
    flow = store.get_flow("shop")
    assert flow is not None
    assert flow.versions == 1
    assert flow.updated_at == NOW


def test_another_document_makes_the_next_version_and_an_old_one_stays_what_it_was(store: Store) -> None:
    first, _ = save(store, "shop", 1, title="One")
    second, _ = save(store, "shop", 2, title="Two", now=LATER)
    old, created = save(store, "shop", 1, title="One")
    assert (first.number, second.number, old.number, created) == (1, 2, 1, False)
    flow = store.get_flow("shop")
    assert flow is not None
    assert (flow.title, flow.versions, flow.created_at, flow.updated_at) == ("Two", 2, NOW, LATER)


def test_two_flows_count_their_versions_apart_even_with_one_document(store: Store) -> None:
    assert save(store, "a", 1)[0].number == 1
    assert save(store, "b", 1)[1]
    assert save(store, "b", 2)[0].number == 2


def test_two_documents_with_one_version_id_are_told_apart(store: Store) -> None:
    common = {"flow_name": "f", "needs": (), "title": "", "now": NOW}
    store.save_version("f", document={"n": 1}, content_hash="0" * 16 + "1" * 48, **common)
    with pytest.raises(Conflict, match="0000000000000000"):
        store.save_version("f", document={"n": 2}, content_hash="0" * 16 + "2" * 48, **common)
    assert len(store.list_versions("f").items) == 1


def test_twenty_threads_that_save_one_document_make_one_version(store: Store, at_once) -> None:
    answers = at_once([partial(save, store, "shop", 1)] * 20)
    assert len({version.version_id for version, _ in answers}) == 1
    assert sum(created for _, created in answers) == 1
    assert [version.number for version in store.list_versions("shop").items] == [1]


def test_twenty_threads_that_save_twenty_documents_make_the_numbers_1_to_20(store: Store, at_once) -> None:
    answers = at_once([partial(save, store, "shop", content, title=str(content)) for content in range(20)])
    assert sorted(version.number for version, _ in answers) == list(range(1, 21))
    listed = store.list_versions("shop").items
    assert [version.number for version in listed] == list(range(20, 0, -1))
    flow = store.get_flow("shop")
    assert flow is not None
    assert flow.versions == 20
    assert flow.title == str(listed[0].document["content"])


def test_publishing_points_the_flow_at_a_version(store: Store) -> None:
    first, _ = save(store, "shop", 1)
    second, _ = save(store, "shop", 2)
    assert store.publish("shop", second.version_id, now=LATER).published_version_id == second.version_id
    flow = store.publish("shop", first.version_id, now=LATER)
    assert flow == store.get_flow("shop")
    assert (flow.published_version_id, flow.updated_at, flow.versions) == (first.version_id, LATER, 2)


def test_only_what_is_there_can_be_published(store: Store) -> None:
    with pytest.raises(NotFound) as no_flow:
        store.publish("shop", "0" * 16, now=NOW)
    assert no_flow.value.code == "flow_not_found"
    save(store, "shop", 1)
    other, _ = save(store, "other", 2)
    with pytest.raises(NotFound) as no_version:
        store.publish("shop", other.version_id, now=NOW)
    assert no_version.value.code == "version_not_found"
    flow = store.get_flow("shop")
    assert flow is not None
    assert flow.published_version_id is None


def test_a_new_version_leaves_the_published_one_published(store: Store) -> None:
    first, _ = save(store, "shop", 1)
    store.publish("shop", first.version_id, now=NOW)
    save(store, "shop", 2)
    flow = store.get_flow("shop")
    assert flow is not None
    assert flow.published_version_id == first.version_id


def test_several_flows_are_read_at_once(store: Store) -> None:
    save(store, "a", 1)
    save(store, "b", 1)
    assert {ident: flow.flow_id for ident, flow in store.get_flows(["b", "a", "none"]).items()} == {"a": "a", "b": "b"}
    assert store.get_flows([]) == {}


def test_flows_are_listed_by_id_in_pages(store: Store) -> None:
    for ident in ("c", "a", "e", "b", "d"):
        save(store, ident, 1)
    first = store.list_flows(limit=2)
    second = store.list_flows(after=first.next, limit=2)
    third = store.list_flows(after=second.next, limit=2)
    pages = [[flow.flow_id for flow in page.items] for page in (first, second, third)]
    assert pages == [["a", "b"], ["c", "d"], ["e"]]
    assert third.next is None
    assert store.list_flows(limit=5).next is None


def test_versions_are_listed_newest_first_in_pages(store: Store) -> None:
    for content in range(5):
        save(store, "shop", content)
    save(store, "other", 0)
    first = store.list_versions("shop", limit=2)
    second = store.list_versions("shop", after=first.next, limit=2)
    third = store.list_versions("shop", after=second.next, limit=2)
    pages = [[version.number for version in page.items] for page in (first, second, third)]
    assert pages == [[5, 4], [3, 2], [1]]
    assert third.next is None
    assert store.list_versions("none").items == []


@pytest.mark.parametrize("cursor", ["", "x", "-1", "1\n", "٣", "1" * 30])
def test_a_strange_cursor_of_versions_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(BadRequest, match="cursor"):
        store.list_versions("shop", after=cursor)


def test_what_is_not_there_is_none(store: Store) -> None:
    assert store.get_version("shop", "0" * 16) is None
    save(store, "shop", 1)
    assert store.get_version("shop", "0" * 16) is None
    assert store.list_flows(after="shop").items == []

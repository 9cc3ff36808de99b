"""Deployments: replaced by compare-and-set on their rev."""

from __future__ import annotations

from functools import partial

import pytest

from app.errors import RevConflict
from app.models.deployment import Deployment
from app.ports import Store
from tests.contract.store.samples import deployment


def test_a_deployment_comes_back_as_it_was_put(store: Store) -> None:
    put = deployment("shop", 1, labels={"a.b": "$x", "$y": ""}, description="é\n\u2028")
    store.put_deployment(put)
    assert store.get_deployment("shop") == put
    assert store.deployment_rev("shop") == 1


def test_a_deployment_is_replaced_by_the_next_rev_only(store: Store) -> None:
    store.put_deployment(deployment("shop", 1))
    store.put_deployment(deployment("shop", 2, name="Two"))
    for rev in (1, 2, 4):
        with pytest.raises(RevConflict) as refused:
            store.put_deployment(deployment("shop", rev, name="stale"))
        assert refused.value.current == 2
    current = store.get_deployment("shop")
    assert current is not None
    assert (current.rev, current.name) == (2, "Two")


def test_what_is_not_there_cannot_be_replaced(store: Store) -> None:
    with pytest.raises(RevConflict) as refused:
        store.put_deployment(deployment("shop", 2))
    assert refused.value.current is None
    assert store.get_deployment("shop") is None
    assert store.deployment_rev("shop") == 0


def test_a_deleted_deployment_is_gone(store: Store) -> None:
    store.put_deployment(deployment("shop", 1))
    assert store.delete_deployment("shop")
    assert store.get_deployment("shop") is None
    assert store.list_deployments().items == []
    assert not store.delete_deployment("shop")
    assert not store.delete_deployment("none")


def test_a_stale_rev_never_overwrites_a_deployment_that_was_deleted_and_created_again(store: Store) -> None:
    store.put_deployment(deployment("shop", 1))
    read_by_somebody = 1
    store.delete_deployment("shop")
    with pytest.raises(RevConflict) as refused:
        store.put_deployment(deployment("shop", read_by_somebody + 1, name="stale"))
    assert refused.value.current is None
    created = deployment("shop", store.deployment_rev("shop") + 1, name="new")
    store.put_deployment(created)
    with pytest.raises(RevConflict):
        store.put_deployment(deployment("shop", read_by_somebody + 1, name="stale"))
    assert store.get_deployment("shop") == created
    assert created.rev == 3


def test_deployments_are_listed_by_id_in_pages(store: Store) -> None:
    for ident in ("c", "a", "gone", "b"):
        store.put_deployment(deployment(ident, 1))
    store.delete_deployment("gone")
    first = store.list_deployments(limit=2)
    second = store.list_deployments(after=first.next, limit=2)
    assert [[one.id for one in page.items] for page in (first, second)] == [["a", "b"], ["c"]]
    assert second.next is None


def variants(*flows: str) -> list[dict[str, object]]:
    return [{"label": f"v{n}", "flowId": flow, "weight": 1} for n, flow in enumerate(flows)]


def test_deployments_that_use_a_flow_are_listed_by_id_in_pages(store: Store) -> None:
    for ident, flows in {"d": ["f"], "a": ["f", "g"], "c": ["g"], "b": ["f", "f"], "gone": ["f"]}.items():
        store.put_deployment(deployment(ident, 1, variants=variants(*flows)))
    store.delete_deployment("gone")
    first = store.list_deployments(flow="f", limit=2)
    second = store.list_deployments(flow="f", after=first.next, limit=2)
    assert [[one.id for one in page.items] for page in (first, second)] == [["a", "b"], ["d"]]
    assert second.next is None
    assert [one.id for one in store.list_deployments(flow="g").items] == ["a", "c"]
    assert store.list_deployments(flow="nobody's").items == []


def test_a_deployment_that_is_replaced_uses_the_flows_of_its_new_variants_only(store: Store) -> None:
    store.put_deployment(deployment("shop", 1, variants=variants("f", "g")))
    store.put_deployment(deployment("shop", 2, variants=variants("g", "h")))
    used = {flow: [one.rev for one in store.list_deployments(flow=flow).items] for flow in ("f", "g", "h")}
    assert used == {"f": [], "g": [2], "h": [2]}


@pytest.mark.parametrize("rev", [1, 2])
def test_of_twenty_threads_that_put_the_same_rev_one_wins(store: Store, at_once, rev: int) -> None:
    if rev == 2:
        store.put_deployment(deployment("shop", 1))

    def put(one: Deployment) -> bool:
        try:
            store.put_deployment(one)
        except RevConflict:
            return False
        return True

    tries = [deployment("shop", rev, name=f"n{n}") for n in range(20)]
    won = at_once([partial(put, one) for one in tries])
    assert sum(won) == 1
    assert store.get_deployment("shop") == tries[won.index(True)]

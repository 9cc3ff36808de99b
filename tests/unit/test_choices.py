"""What a run can be is read once a second, and never stale after a change that this process made."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from app.catalog import Catalog
from app.errors import NotFound, ServerUnavailable
from app.nodes.registry import HandlerRegistry
from app.runs import choices as module
from app.runs.choices import Choices
from app.store.memory import MemoryStore

NOTHING = {"operationId": "nothing", "kind": "transform"}


class CountingStore(MemoryStore):
    """Counts the two reads that a choice costs, and lets a test act in the middle of one."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.meanwhile: Callable[[], object] | None = None

    def get_deployment(self, deployment_id: str) -> Any:
        self.reads += 1
        found = super().get_deployment(deployment_id)
        if (act := self.meanwhile) is not None:
            self.meanwhile = None
            act()
        return found


class World:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.store = CountingStore()
        self.catalog = self.process()
        self.choices = Choices(self.catalog, lambda: self.now_s)
        self.load(1)
        self.put()

    def process(self) -> Catalog:
        """The catalog of another process."""
        return Catalog(self.store, lambda: 0, HandlerRegistry())

    def load(self, note: int, *, publish: bool = True, catalog: Catalog | None = None) -> str:
        flow = {"nodes": {"a": NOTHING}, "edges": []}
        document = {"flowdsl": "1.0.0", "info": {"title": "T", "version": "1"}, "flows": {"f": flow}, "x-note": note}
        raw = json.dumps(document).encode()
        return (catalog or self.catalog).import_document(raw, publish=publish).flows[0].version_id

    def put(self, rev: int | None = None, *, catalog: Catalog | None = None, **changes: Any) -> None:
        variant = {"label": "only", "flowId": "f", "weight": 1}
        body = {"variants": [variant | changes]} | ({} if rev is None else {"rev": rev})
        (catalog or self.catalog).put_deployment("d", body)

    def version(self) -> str | None:
        ref = self.choices.of("d").versions["only"]
        return None if ref is None else ref.version_id

    def weight(self) -> int:
        return self.choices.of("d").deployment.variants[0].weight


@pytest.fixture
def world() -> World:
    return World()


def test_a_choice_is_read_once_a_second(world: World) -> None:
    world.choices.of("d")
    before = world.store.reads
    world.now_s += 1.0
    world.choices.of("d")
    assert world.store.reads == before
    world.now_s += 0.01
    world.choices.of("d")
    assert world.store.reads == before + 1


def test_a_change_made_by_this_process_counts_at_once(world: World) -> None:
    first = world.version()
    second = world.load(2)
    assert world.version() == second
    world.catalog.publish("f", first or "")
    assert world.version() == first
    world.put(1, weight=7)
    assert world.weight() == 7
    world.catalog.delete_deployment("d")
    with pytest.raises(NotFound):
        world.choices.of("d")
    world.put(weight=9)
    assert world.weight() == 9


def test_a_version_that_a_variant_waits_for_is_there_once_it_is_imported(world: World) -> None:
    elsewhere = World()
    second = elsewhere.load(2)
    world.put(1, versionId=second)
    assert world.version() is None
    world.load(2, publish=False)
    assert world.version() == second


def test_a_change_made_by_another_process_counts_within_a_second(world: World) -> None:
    first, other = world.version(), world.process()
    second = world.load(2, catalog=other)
    world.put(1, catalog=other, weight=7)
    assert (world.version(), world.weight()) == (first, 1)
    world.now_s += 1.01
    assert (world.version(), world.weight()) == (second, 7)


def test_what_was_read_before_a_change_is_not_kept_after_it(world: World) -> None:
    """The reading began before the change and ended after it; what it brought may be either."""
    world.now_s += 2
    world.store.meanwhile = lambda: world.put(1, weight=7)
    world.choices.of("d")

    assert world.weight() == 7


def test_a_reading_is_as_old_as_its_beginning(world: World) -> None:
    other = world.process()
    world.now_s += 2

    def slowly() -> None:
        world.put(1, catalog=other, weight=7)
        world.now_s += 0.9

    world.store.meanwhile = slowly
    assert world.weight() == 1
    world.now_s += 0.2
    assert world.weight() == 7


def test_a_change_whose_answer_got_lost_counts_as_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert world.weight() == 1
    put = world.store.put_deployment

    def lost(deployment: Any) -> None:
        put(deployment)
        raise ServerUnavailable("mongo", "no answer in time")

    monkeypatch.setattr(world.store, "put_deployment", lost)
    with pytest.raises(ServerUnavailable):
        world.put(1, weight=7)

    assert world.weight() == 7


def test_few_are_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 3)
    for number in range(10):
        world.catalog.put_deployment(f"d{number}", {"variants": [{"label": "only", "flowId": "f", "weight": 1}]})
    for number in range(10):
        assert world.choices.of(f"d{number}").deployment.id == f"d{number}"
        assert len(world.choices._kept) <= 3

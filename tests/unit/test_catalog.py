"""The catalog over the store in memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from app.catalog import Catalog, _Kept
from app.clock import to_rfc3339
from app.errors import BadRequest, InvalidDocument, NotFound, RevConflict
from app.flowdsl import content_hash
from app.nodes.registry import HandlerRegistry, load_handlers
from app.ports import Store
from app.resolver import VersionRef
from app.store.memory import MemoryStore

NODE = {"operationId": "n", "kind": "transform", "x-action-ref": "core/log", "settings": {"message": "hello"}}


class CountingStore(MemoryStore):
    """Counts the calls that would be round trips."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name != "calls" and callable(getattr(MemoryStore, name, None)):
            self.calls[name] += 1
        return super().__getattribute__(name)


@pytest.fixture(scope="session")
def handlers() -> HandlerRegistry:
    return load_handlers(entry_points=False)


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


class Time:
    ms = 1_796_000_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def catalog(store: Store, time: Time, handlers: HandlerRegistry) -> Catalog:
    return Catalog(store, time, handlers)


def document(*names: str, note: Any = None, node: Mapping[str, Any] = NODE) -> dict[str, Any]:
    flow = {"summary": "Does little", "nodes": {"a": dict(node), "b": dict(NODE)}, "edges": [{"from": "a", "to": "b"}]}
    return {
        "flowdsl": "1.0.0",
        "info": {"title": "T", "version": "1"},
        "flows": dict.fromkeys(names, flow),
        "x-note": note,
    }


def load(catalog: Catalog, content: Mapping[str, Any], **options: Any) -> list[dict[str, Any]]:
    return [flow.to_wire() for flow in catalog.import_document(json.dumps(content).encode(), **options).flows]


# --- importing -------------------------------------------------------------------------------------------------------


def test_an_import_makes_a_version_of_each_flow(catalog: Catalog, time: Time) -> None:
    content = document("shop", "mail", note=[1, {}])
    result = catalog.import_document(json.dumps(content).encode(), media_type="application/json")
    assert result.changed
    assert [(flow.flow_id, flow.number, flow.published, flow.warnings) for flow in result.flows] == [
        ("shop", 1, False, ()),
        ("mail", 1, False, ()),
    ]
    version = catalog.version("shop", result.flows[0].version_id)
    assert version.content_hash == content_hash(content, "shop")
    assert version.version_id == version.content_hash[:16]
    assert version.document == content
    assert version.needs == (("core/log", "n"), ("core/log", "n"))
    assert version.created_at == to_rfc3339(time.ms)


def test_the_answer_has_the_shape_of_the_api(catalog: Catalog) -> None:
    content = document("shop", node={"operationId": "mystery", "kind": "transform"})
    (flow,) = load(catalog, content, publish=True)
    assert set(flow) == {"flowId", "versionId", "number", "published", "warnings"}
    assert flow["published"] is True
    assert [set(warning) for warning in flow["warnings"]] == [{"at", "message", "severity", "mend"}] * len(
        flow["warnings"]
    )
    assert any("mystery" in warning["message"] for warning in flow["warnings"])


def test_a_handler_that_a_worker_announces_needs_no_warning(catalog: Catalog) -> None:
    content = document("shop", node={"operationId": "mystery", "kind": "transform"})
    (flow,) = load(catalog, content, announced=frozenset({"mystery"}))
    assert flow["warnings"] == []


def test_the_same_document_again_changes_nothing(catalog: Catalog) -> None:
    raw = json.dumps(document("shop")).encode()
    first = catalog.import_document(raw, publish=True)
    again = catalog.import_document(raw, publish=True)
    assert first.changed
    assert not again.changed
    assert again.to_wire() == first.to_wire()


def test_publishing_what_was_only_saved_before_is_a_change(catalog: Catalog) -> None:
    raw = json.dumps(document("shop")).encode()
    assert not catalog.import_document(raw).flows[0].published
    result = catalog.import_document(raw, publish=True)
    assert result.changed
    assert catalog.flow("shop").published_version_id == result.flows[0].version_id
    saved_again = catalog.import_document(raw)
    assert saved_again.flows[0].published
    assert not saved_again.changed


def test_a_new_version_is_not_published_unless_asked(catalog: Catalog) -> None:
    (first,) = load(catalog, document("shop", note=1), publish=True)
    (second,) = load(catalog, document("shop", note=2))
    assert (second["number"], second["published"]) == (2, False)
    assert catalog.flow("shop").published_version_id == first["versionId"]
    assert [version.number for version in catalog.versions("shop").items] == [2, 1]


def test_one_flow_of_a_document_can_be_imported_alone(catalog: Catalog) -> None:
    content = document("shop", "mail")
    content["flows"]["mail"] = {"nodes": {}}
    assert [flow["flowId"] for flow in load(catalog, content, flow="shop")] == ["shop"]
    with pytest.raises(InvalidDocument, match="has no flow 'none'; name one of shop, mail"):
        load(catalog, content, flow="none")


def test_no_flow_is_saved_unless_all_are_sound_and_all_faults_are_told(catalog: Catalog) -> None:
    content = document("good", "bad", "worse")
    for name in ("bad", "worse"):
        content["flows"][name] = content["flows"]["good"] | {"edges": [{"from": "a", "to": "nowhere"}]}
    with pytest.raises(InvalidDocument) as refused:
        load(catalog, content)
    places = {fault.at for fault in refused.value.faults}
    assert any(at.startswith("/flows/bad/edges/0") for at in places)
    assert any(at.startswith("/flows/worse/edges/0") for at in places)
    assert catalog.flows().items == []


def test_a_fault_in_what_flows_share_is_told_once(catalog: Catalog) -> None:
    content = document("one", "two", node={"$ref": "#/components/nodes/shared"})
    content["components"] = {"nodes": {"shared": NODE | {"settings": {}}}}
    with pytest.raises(InvalidDocument) as refused:
        load(catalog, content)
    assert [fault.at for fault in refused.value.faults].count("/components/nodes/shared/settings/message") == 1


def test_yaml_and_json_of_one_document_are_one_version(catalog: Catalog) -> None:
    content = document("shop")
    (first,) = load(catalog, content)
    import yaml

    raw = yaml.safe_dump(content, sort_keys=True).encode()
    result = catalog.import_document(raw, media_type="application/yaml")
    assert not result.changed
    assert result.flows[0].version_id == first["versionId"]


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff", b'{"flowdsl": "1.0.0"}', b'{"flows": {"a b": {}}}'])
def test_what_is_no_document_is_refused(catalog: Catalog, raw: bytes) -> None:
    with pytest.raises(InvalidDocument):
        catalog.import_document(raw, media_type="application/json")
    assert catalog.flows().items == []


# --- looking up ------------------------------------------------------------------------------------------------------


def test_what_is_not_there_is_named(catalog: Catalog) -> None:
    load(catalog, document("shop"))
    lookups = {
        "flow_not_found": [lambda: catalog.flow("x"), lambda: catalog.versions("x"), lambda: catalog.publish("x", "v")],
        "version_not_found": [
            lambda: catalog.version("shop", "0" * 16),
            lambda: catalog.plan("shop", "0" * 16),
            lambda: catalog.publish("shop", "0" * 16),
        ],
        "deployment_not_found": [lambda: catalog.deployment("x"), lambda: catalog.delete_deployment("x")],
    }
    for code, calls in lookups.items():
        for call in calls:
            with pytest.raises(NotFound) as missing:
                call()
            assert missing.value.code == code


def test_lists_go_through_in_pages(catalog: Catalog) -> None:
    load(catalog, document("a", "b", "c"))
    first = catalog.flows(limit=2)
    assert [flow.flow_id for flow in first.items + catalog.flows(after=first.next).items] == ["a", "b", "c"]
    for note in range(3):
        load(catalog, document("a", note=note), flow="a")
    page = catalog.versions("a", limit=3)
    assert [version.number for version in page.items] == [4, 3, 2]
    assert [version.number for version in catalog.versions("a", after=page.next).items] == [1]
    for ident in ("x", "y"):
        catalog.put_deployment(ident, BODY)
    assert [one.id for one in catalog.deployments(limit=1).items] == ["x"]
    assert [one.id for one in catalog.deployments(after="x").items] == ["y"]


def test_a_plan_is_compiled_once(catalog: Catalog, store: CountingStore) -> None:
    (flow,) = load(catalog, document("shop"))
    plan = catalog.plan("shop", flow["versionId"])
    assert plan.flow_name == "shop"
    store.calls.clear()
    assert catalog.plan("shop", flow["versionId"]) is plan
    assert store.calls == {}


# --- deployments -----------------------------------------------------------------------------------------------------

BODY = {"variants": [{"label": "main", "flowId": "shop", "weight": 1}]}


def test_a_deployment_is_created_and_then_replaced_by_its_rev(catalog: Catalog, time: Time) -> None:
    born = to_rfc3339(time.ms)
    made, created = catalog.put_deployment("shop", BODY)
    assert created
    assert (made.id, made.name, made.rev, made.created_at, made.updated_at) == ("shop", "shop", 1, born, born)
    time.ms += 5
    replaced, created = catalog.put_deployment("shop", BODY | {"name": "Shop", "rev": 1})
    assert not created
    assert (replaced.name, replaced.rev, replaced.created_at) == ("Shop", 2, born)
    assert replaced.updated_at == to_rfc3339(time.ms)
    assert catalog.deployment("shop") == replaced


def test_what_was_read_can_be_sent_back(catalog: Catalog) -> None:
    made, _ = catalog.put_deployment("shop", BODY)
    again, created = catalog.put_deployment("shop", made.to_wire())
    assert (again.rev, created) == (2, False)


@pytest.mark.parametrize("rev", [None, 1, 3])
def test_a_rev_that_is_not_the_current_one_is_a_conflict(catalog: Catalog, rev: int | None) -> None:
    catalog.put_deployment("shop", BODY)
    catalog.put_deployment("shop", BODY | {"rev": 1})
    with pytest.raises(RevConflict) as refused:
        catalog.put_deployment("shop", BODY | ({} if rev is None else {"rev": rev}))
    assert refused.value.current == 2
    assert "rev 2" in str(refused.value)


def test_a_rev_for_what_is_not_there_is_a_conflict(catalog: Catalog) -> None:
    with pytest.raises(RevConflict, match="does not exist and 1 was sent"):
        catalog.put_deployment("shop", BODY | {"rev": 1})


def test_revs_count_on_after_a_deletion(catalog: Catalog) -> None:
    old, _ = catalog.put_deployment("shop", BODY)
    catalog.delete_deployment("shop")
    with pytest.raises(NotFound):
        catalog.deployment("shop")
    new, created = catalog.put_deployment("shop", BODY)
    assert created
    assert new.rev > old.rev + 1
    with pytest.raises(RevConflict):
        catalog.put_deployment("shop", old.to_wire())


def test_a_deployment_that_loses_the_race_between_read_and_write_is_told(
    catalog: Catalog, store: CountingStore
) -> None:
    class Racing(CountingStore):
        def get_deployment(self, deployment_id: str) -> Any:
            found = super().get_deployment(deployment_id)
            if found is None and not self.raced:
                self.raced = True
                other.put_deployment(deployment_id, BODY | {"name": "first"})
            return found

        raced = False

    racing = Racing()
    other = Catalog(racing, lambda: 0, HandlerRegistry())
    with pytest.raises(RevConflict):
        Catalog(racing, lambda: 0, HandlerRegistry()).put_deployment("shop", BODY | {"name": "second"})
    assert other.deployment("shop").name == "first"


@pytest.mark.parametrize(
    ("ident", "body", "at"),
    [
        ("a b", BODY, "/id"),
        ("shop", BODY | {"id": "other"}, "/id"),
        ("shop", BODY | {"variants": []}, "/variants"),
        ("shop", BODY | {"surprise": 1}, "/surprise"),
        ("shop", BODY | {"labels": {"a": "\ud800"}}, "/labels/a"),
        ("shop", [], ""),
    ],
)
def test_a_bad_body_is_refused_with_its_place(catalog: Catalog, ident: str, body: Any, at: str) -> None:
    with pytest.raises(BadRequest) as refused:
        catalog.put_deployment(ident, body)
    assert [fault.at for fault in refused.value.faults] == [at]
    assert catalog.deployments().items == []


# --- versions for the resolver ---------------------------------------------------------------------------------------


def variants(**flows: tuple[str, str | None]) -> dict[str, Any]:
    return {
        "variants": [
            {"label": label, "flowId": flow, "weight": 1} | ({} if version is None else {"versionId": version})
            for label, (flow, version) in flows.items()
        ]
    }


def test_each_variant_gets_its_own_version_else_the_published_one_else_none(catalog: Catalog) -> None:
    first, mail = load(catalog, document("shop", "mail", note=1))
    (second,) = load(catalog, document("shop", note=2), publish=True)
    body = variants(
        floating=("shop", None), pinned=("shop", first["versionId"]), draft=("mail", None), gone=("none", None),
        wrong=("shop", mail["versionId"]),
    )  # fmt: skip
    deployment, _ = catalog.put_deployment("d", body)
    refs = catalog.versions_for(deployment)
    assert list(refs) == ["floating", "pinned", "draft", "gone", "wrong"]
    needs = catalog.version("shop", first["versionId"]).needs
    assert needs
    assert refs["floating"] == VersionRef("shop", second["versionId"], needs)
    assert refs["pinned"] == VersionRef("shop", first["versionId"], needs)
    assert (refs["draft"], refs["gone"], refs["wrong"]) == (None, None, None)


def test_a_newly_published_version_counts_at_once(catalog: Catalog) -> None:
    (first,) = load(catalog, document("shop", note=1), publish=True)
    deployment, _ = catalog.put_deployment("d", variants(main=("shop", None)))
    assert catalog.versions_for(deployment)["main"].version_id == first["versionId"]
    (second,) = load(catalog, document("shop", note=2), publish=True)
    assert catalog.versions_for(deployment)["main"].version_id == second["versionId"]


def test_versions_cost_one_read_however_many_variants_there_are(catalog: Catalog, store: CountingStore) -> None:
    names = [f"f{n}" for n in range(10)]
    load(catalog, document(*names), publish=True)
    deployment, _ = catalog.put_deployment("d", variants(**{name: (name, None) for name in names}))
    catalog.versions_for(deployment)
    store.calls.clear()
    assert None not in catalog.versions_for(deployment).values()
    assert store.calls == {"get_flows": 1}


def test_pinned_versions_that_were_seen_cost_no_read(catalog: Catalog, store: CountingStore) -> None:
    (flow,) = load(catalog, document("shop"))
    deployment, _ = catalog.put_deployment("d", variants(a=("shop", flow["versionId"]), b=("shop", flow["versionId"])))
    store.calls.clear()
    catalog.versions_for(deployment)
    assert store.calls == {"get_version": 1}
    store.calls.clear()
    catalog.versions_for(deployment)
    assert store.calls == {}


# --- what is kept ----------------------------------------------------------------------------------------------------


def test_what_was_asked_for_last_is_kept() -> None:
    kept: _Kept[str, object] = _Kept(2)
    a, b = kept.get("a", object), kept.get("b", object)
    assert kept.get("a", object) is a
    kept.get("c", object)
    assert kept.get("a", object) is a
    assert kept.get("b", object) is not b


def test_a_failure_is_not_kept() -> None:
    kept: _Kept[str, int] = _Kept(2)
    with pytest.raises(ZeroDivisionError):
        kept.get("a", lambda: 1 // 0)
    assert kept.get("a", lambda: 1) == 1

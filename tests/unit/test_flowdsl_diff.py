"""What is different between two versions of a flow."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.flowdsl.diff import Change, diff
from tests.flows import document, edge, node

BASE = document(
    {"a": node("t/a", settings={"text": "Hello", "limits": [1, 2]}), "b/c": node("t/b"), "d": node("t/d")},
    [edge("a", "b/c"), edge("b/c", "d", "output.ok"), edge("a", "d")],
    components={"packets": {"Order": {"type": "object"}}},
)


def changed(change: Any, before: dict[str, Any] = BASE) -> list[dict[str, Any]]:
    after = copy.deepcopy(before)
    change(after["flows"]["x"])
    return [found.to_wire() for found in diff(before, after, "x")]


def test_the_same_document_has_no_changes() -> None:
    assert diff(BASE, copy.deepcopy(BASE), "x") == []


def test_a_setting_is_named_by_its_place_with_both_values() -> None:
    def change(flow: dict[str, Any]) -> None:
        flow["nodes"]["a"]["settings"] |= {"text": "Hi", "limits": [1, 2, 3], "new": None}

    at = "/flows/x/nodes/a/settings"
    assert changed(change) == [
        {"at": f"{at}/text", "change": "changed", "what": "setting", "before": "Hello", "after": "Hi"},
        {"at": f"{at}/limits/2", "change": "added", "what": "setting", "after": 3},
        {"at": f"{at}/new", "change": "added", "what": "setting", "after": None},
    ]


def test_nodes_come_and_go_whole() -> None:
    def change(flow: dict[str, Any]) -> None:
        del flow["nodes"]["b/c"]
        flow["nodes"]["e"] = node("t/e")
        flow["nodes"]["d"]["kind"] = "terminal"

    assert [(one["at"], one["change"], one["what"]) for one in changed(change)] == [
        ("/flows/x/nodes/b~1c", "removed", "node"),
        ("/flows/x/nodes/d/kind", "changed", "node"),
        ("/flows/x/nodes/e", "added", "node"),
    ]


def test_an_inserted_edge_is_one_change() -> None:
    new = edge("d", "a")
    assert changed(lambda flow: flow["edges"].insert(0, new)) == [
        {"at": "/flows/x/edges/0", "change": "added", "what": "edge", "after": new}
    ]


def test_a_removed_edge_is_named_where_it_was_and_a_changed_one_where_it_is() -> None:
    def change(flow: dict[str, Any]) -> None:
        del flow["edges"][0]
        flow["edges"][0]["when"] = "!output.ok"

    assert changed(change) == [
        {"at": "/flows/x/edges/0", "change": "removed", "what": "edge", "before": edge("a", "b/c")},
        {"at": "/flows/x/edges/0/when", "change": "changed", "what": "edge", "before": "output.ok",
         "after": "!output.ok"},
    ]  # fmt: skip


def test_edges_in_another_order_are_followed_in_another_order() -> None:
    assert changed(lambda flow: flow["edges"].reverse()) == [
        {"at": "/flows/x/edges", "change": "moved", "what": "edge"}
    ]


def test_several_edges_between_the_same_nodes_are_paired_in_their_order() -> None:
    twice = document({"a": node("t/a"), "b": node("t/b")}, [edge("a", "b", "x"), edge("a", "b", "y")])
    assert [one["at"] for one in changed(lambda flow: flow["edges"].append(edge("a", "b", "z")), twice)] == [
        "/flows/x/edges/2"
    ]
    assert [one["at"] for one in changed(lambda flow: flow["edges"][1].update(when="z"), twice)] == [
        "/flows/x/edges/1/when"
    ]


def test_the_rest_of_the_flow_the_components_and_other_flows_are_told_apart() -> None:
    after = copy.deepcopy(BASE)
    after["flows"]["x"]["entrypoints"] = ["a"]
    after["flows"]["other"] = {"nodes": {}}
    after["components"]["packets"]["Order"]["type"] = "array"
    after["info"]["version"] = "2.0.0"
    assert {change.at: change.what for change in diff(BASE, after, "x")} == {
        "/flows/x/entrypoints": "flow",
        "/flows/other": "document",
        "/components/packets/Order/type": "component",
        "/info/version": "document",
    }


def test_what_looks_alike_in_python_and_is_other_json_is_a_change() -> None:
    for before, after in ((1, 1.0), (1, True), (0, False), (None, False), ("1", 1), ([], {})):
        assert changed(lambda flow: flow, document({"a": node("t/a", settings={"v": before})})) == []
        one = document({"a": node("t/a", settings={"v": before})})
        two = document({"a": node("t/a", settings={"v": after})})
        assert [change.kind for change in diff(one, two, "x")] == ["changed"], (before, after)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "a", "~/"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "/~"]), inner, max_size=3),
    max_leaves=8,
)
ends = st.sampled_from(["a", "b", "c"])
documents = st.fixed_dictionaries(
    {
        "flows": st.fixed_dictionaries(
            {
                "x": st.fixed_dictionaries(
                    {"nodes": values, "edges": st.lists(st.builds(edge, ends, ends, st.none() | ends), max_size=5)}
                )
            }
        ),
        "components": values,
    }
)


def look_up(value: Any, pointer: str) -> Any:
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


@settings(max_examples=150, deadline=None)
@given(documents, documents)
def test_two_documents_have_changes_exactly_if_they_differ_and_each_is_where_it_says(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    found = diff(before, after, "x")
    assert (found == []) == (json.dumps(before, sort_keys=True) == json.dumps(after, sort_keys=True))
    for change in found:
        wire = change.to_wire()
        inside_an_edge = change.at.startswith("/flows/x/edges/") and change.at.count("/") > 4
        if change.kind == "removed" and not inside_an_edge:
            assert look_up(before, change.at) == wire["before"]
        if "after" in wire:
            assert look_up(after, change.at) == wire["after"]


@settings(max_examples=150, deadline=None)
@given(documents, documents)
def test_the_way_back_has_the_opposite_changes(before: dict[str, Any], after: dict[str, Any]) -> None:
    opposite = {"added": "removed", "removed": "added", "changed": "changed", "moved": "moved"}

    def story(changes: list[Change], *, back: bool) -> list[str]:
        wires = [change.to_wire() for change in changes]
        if back:
            names = {"before": "after", "after": "before"}
            wires = [{names.get(name, name): value for name, value in wire.items()} for wire in wires]
            wires = [wire | {"change": opposite[wire["change"]]} for wire in wires]
        # A changed edge is named by its place in the new document.
        return sorted(json.dumps({k: v for k, v in wire.items() if k != "at"}, sort_keys=True) for wire in wires)

    assert story(diff(before, after, "x"), back=False) == story(diff(after, before, "x"), back=True)

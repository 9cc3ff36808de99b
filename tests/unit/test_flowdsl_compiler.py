"""Compiling flows: every fault with its place, what is only warned about, and what a plan says."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from app.errors import InvalidDocument
from app.flowdsl import compile_flow, flow_names
from app.flowdsl.retry import RetryPolicy
from tests.flows import chain, document, edge, faults, lint, node

AB = {"a": node("t/a"), "b": node("t/b")}


def test_flow_names_are_ids() -> None:
    assert flow_names({"flows": {"b": {}, "a.1": {}}}) == ["b", "a.1"]
    with pytest.raises(InvalidDocument) as caught:
        flow_names({"flows": {"good": {}, "not good": {}, "a/b": {}}})
    assert [fault.at for fault in caught.value.faults] == ["/flows/not good", "/flows/a~1b"]


@pytest.mark.parametrize("flows", [None, {}, [], "x"])
def test_a_document_without_flows_is_refused(flows: Any) -> None:
    with pytest.raises(InvalidDocument, match="/flows: must be an object with at least one flow"):
        flow_names({"flows": flows})


def test_all_faults_are_found_at_once_each_at_its_place() -> None:
    broken = document(
        {
            "a": node("t/a"),
            "b": {"$ref": "#/components/nodes/Missing"},
            "c": {"kind": "action"},
            "d": "text",
            "e": node("core/delay", settings={"seconds": -1}),
            "f": {"$ref": "https://example.com/x#/node"},
        },
        [
            edge("a", "b", "output.x ="),
            edge("a", "nowhere"),
            edge("ghost.port", "a"),
            {"from": "a"},
            "text",
            edge("a", "b", 3),  # type: ignore[arg-type]
            edge("a", "b", packet="#/components/packets/Missing"),
            edge("a", "b", delivery={"retryPolicy": {"$ref": "#/components/policies/missing"}}),
        ],
        entrypoints=["a", "nobody", {"message": {"$ref": "#/components/packets/Missing"}, "filter": "x >"}, 7],
    )
    assert set(faults(broken)) == {
        "/flows/x/nodes/b/$ref",
        "/flows/x/nodes/c",
        "/flows/x/nodes/d",
        "/flows/x/nodes/e/settings/seconds",
        "/flows/x/nodes/f/$ref",
        "/flows/x/edges/0/when",
        "/flows/x/edges/1/to",
        "/flows/x/edges/2/from",
        "/flows/x/edges/3/to",
        "/flows/x/edges/4",
        "/flows/x/edges/5/when",
        "/flows/x/edges/6/packet",
        "/flows/x/edges/7/delivery/retryPolicy/$ref",
        "/flows/x/entrypoints/1",
        "/flows/x/entrypoints/2/filter",
        "/flows/x/entrypoints/2/message/$ref",
        "/flows/x/entrypoints/3",
    }


@pytest.mark.parametrize(
    ("flow", "at"),
    [
        ("text", "/flows/x"),
        ({"nodes": {}}, "/flows/x/nodes"),
        ({"nodes": []}, "/flows/x/nodes"),
        ({"nodes": AB, "edges": {}}, "/flows/x/edges"),
        ({"nodes": AB, "entrypoints": "a"}, "/flows/x/entrypoints"),
        ({"nodes": AB, "edges": [*chain("a", "b"), edge("b", "a")]}, "/flows/x/entrypoints"),
    ],
)
def test_a_flow_that_can_never_run_is_refused(flow: Any, at: str) -> None:
    assert list(faults({"flowdsl": "1.0.0", "flows": {"x": flow}})) == [at]


def test_a_node_is_found_behind_references_and_fields_beside_a_reference_override() -> None:
    source = document(
        {
            "a": {"$ref": "#/components/nodes/Alias", "settings": {"message": "mine"}},
            "b": {"$ref": "#/components/nodes/Log"},
        },
        chain("a", "b"),
        components={
            "nodes": {
                "Alias": {"$ref": "#/components/nodes/Log"},
                "Log": node("core/log", settings={"message": "theirs"}),
            }
        },
    )
    a, b = compile_flow(source, "x").nodes
    assert (a.settings, a.at) == ({"message": "mine"}, "/flows/x/nodes/a")
    assert (b.settings, b.at) == ({"message": "theirs"}, "/components/nodes/Log")


def test_references_round_in_a_circle_are_refused() -> None:
    circle = {"A": {"$ref": "#/components/nodes/B"}, "B": {"$ref": "#/components/nodes/A"}}
    source = document({"a": {"$ref": "#/components/nodes/A"}}, components={"nodes": circle})
    assert faults(source) == {"/flows/x/nodes/a": "the $ref leads round in a circle"}


def test_wrong_settings_of_a_known_handler_are_refused_at_the_place_where_they_stand() -> None:
    source = document(
        {
            "a": {"$ref": "#/components/nodes/R"},
            "b": node("core/count"),
            "c": node("core/log", settings={"message": "{{ if x }}"}),
        },
        components={
            "nodes": {"R": node("core/router", settings={"routes": [{"when": "output.", "route": "x"}], "more": 1})}
        },
    )
    found = faults(source)
    assert set(found) == {
        "/components/nodes/R/settings/routes/0/when",
        "/components/nodes/R/settings/more",
        "/flows/x/nodes/b/settings/key",
        "/flows/x/nodes/c/settings/message",
    }
    assert "paths like {{ user.name }}" in found["/flows/x/nodes/c/settings/message"]


def test_candidates_are_tried_in_the_order_of_the_format() -> None:
    full = {
        "kind": "llm",
        "operationId": "op",
        "x-action-ref": "x/ref",
        "runtime": {"handler": "run.Handler"},
        "x-ui": {"registryId": "reg"},
    }
    source = document(
        {
            "full": full,
            "in": full | {"kind": "source"},
            "out": full | {"kind": "terminal"},
            "keep": full | {"kind": "checkpoint"},
            "bare": {"operationId": "op"},
            "plain": {"kind": "terminal", "operationId": "op", "x-ui": {"registryId": "reg"}},
        },
    )
    plan = compile_flow(source, "x")
    named = {node.name: node.candidates for node in plan.nodes}
    assert named == {
        "full": ("x/ref", "run.Handler", "reg", "op"),
        "in": ("x/ref", "run.Handler"),
        "out": ("x/ref", "run.Handler"),
        "keep": (),
        "bare": ("op",),
        "plain": (),
    }
    assert plan.needs == (("x/ref", "run.Handler", "reg", "op"), ("op",))


def test_warnings_depend_on_what_handlers_there_are() -> None:
    source = document(
        {"in": node("t/in", "source"), "a": node("t/a"), "b": node("core/log", settings={"message": "x"})}
    )
    plan = compile_flow(source, "x")
    assert [(warning.at, warning.message) for warning in plan.warnings(frozenset({"core/log"}))] == [
        ("/flows/x/nodes/a", "no handler is known for t/a"),
        ("/flows/x/nodes/in", "no handler is known for t/in; the node passes on what arrives"),
    ]
    assert plan.warnings(frozenset({"core/log", "t/a", "t/in"})) == []


def test_what_can_run_though_odd_is_only_warned_about() -> None:
    source = document(
        {
            "a": node("t/a", "wizard", execution={"timeoutMs": "5s", "maxRetries": -1}),
            "b": node("t/b"),
            "island": node("t/i"),
            "loop": node("t/l"),
        },
        [
            edge("a", "b", "else", packet="Nameless"),
            edge("a", "b", delivery={"mode": "carrier pigeon"}, packet="asyncapi#/components/messages/X"),
            edge("a", "b", delivery={"mode": "stream", "stream": {"bus": "kafka"}}, packet="#/components/packets/Bad"),
            edge("a", "b", delivery={"mode": "ephemeral", "backend": "nats", "retryPolicy": {"backoff": "cubic"}}),
            edge("a", "b", delivery={"mode": "stream", "stream": {"bus": "redis"}}),
            edge("a", "b", delivery="direct"),
            edge("loop", "loop"),
        ],
        entrypoints=["a"],
        defaults={"retryPolicy": 3},
        components={"packets": {"Bad": {"type": "colour"}}},
    ) | {"flowdsl": "1.1.0"}
    assert set(lint(source)) == {
        "/flowdsl",
        "/flows/x/nodes/a/kind",
        "/flows/x/nodes/a/execution/timeoutMs",
        "/flows/x/nodes/a/execution/maxRetries",
        "/flows/x/edges/0/when",
        "/flows/x/edges/0/packet",
        "/flows/x/edges/1/delivery/mode",
        "/flows/x/edges/1/packet",
        "/flows/x/edges/2/delivery/stream/bus",
        "/components/packets/Bad",
        "/flows/x/edges/3/delivery/backend",
        "/flows/x/edges/3/delivery/retryPolicy/backoff",
        "/flows/x/edges/4/delivery/stream/topic",
        "/flows/x/edges/5/delivery",
        "/flows/x/nodes/island",
        "/flows/x/nodes/loop",
        "/flows/x/defaults/retryPolicy",
    }


def test_a_flow_without_a_sink_has_no_output_and_says_so() -> None:
    assert (
        "the output is null"
        in lint(document({"a": node("t/a")}, [edge("a", "a")], entrypoints=["a"]))["/flows/x/edges"]
    )


def test_defaults_apply_where_a_node_says_nothing() -> None:
    own = node("t/b", execution={"timeoutMs": 5, "maxRetries": 2})
    defaults = {
        "execution": {"timeoutMs": 30_000, "maxRetries": 1},
        "retryPolicy": {"maxAttempts": 4, "initialDelay": "PT2S"},
    }
    a, b = compile_flow(document({"a": node("t/a"), "b": own}, chain("a", "b"), defaults=defaults), "x").nodes
    assert (a.timeout_ms, a.retry) == (30_000, RetryPolicy(4, 2_000))
    assert (b.timeout_ms, b.retry) == (5, RetryPolicy(3))
    only_retries = document(AB, defaults={"execution": {"maxRetries": 1}})
    plan = compile_flow(only_retries, "x")
    assert (plan.nodes[0].retry, plan.default_retry) == (RetryPolicy(2), None)


def test_names_of_nodes_may_have_dots() -> None:
    plan = compile_flow(
        document(
            {"a.b": node("t/a"), "a": node("t/x"), "c": node("t/c")}, [edge("a.b", "c.in"), edge("a.b.left", "a")]
        ),
        "x",
    )
    assert [(item.source, item.source_port, item.target, item.target_port) for item in plan.edges] == [
        (0, None, 2, "in"),
        (0, "left", 1, None),
    ]


def test_the_title_is_the_flows_own_before_the_documents() -> None:
    assert compile_flow(document(AB, title="T", summary="S"), "x").title == "T"
    assert compile_flow(document(AB, summary="S"), "x").title == "S"
    assert compile_flow(document(AB), "x").title == "Test"
    assert compile_flow({"flows": {"x": {"nodes": AB}}}, "x").title == "x"


def test_entries_are_those_named_else_the_nodes_without_incoming_edges() -> None:
    def entries(**flow: Any) -> list[str]:
        plan = compile_flow(
            document({"a": node("t/a"), "b": node("t/b"), "c": node("t/c")}, chain("a", "b"), **flow), "x"
        )
        return [plan.nodes[entry.node].name for entry in plan.entries]

    assert entries() == entries(entrypoints=[]) == entries(entrypoints=[{"message": {}}]) == ["a", "c"]
    assert entries(entrypoints=["b"]) == ["b"]
    assert entries(entrypoints=[{"node": "b", "filter": "input.x == 1"}, "c"]) == ["b", "c"]
    assert entries(entrypoints=["c", {"message": {"schema": {"type": "object"}}}]) == ["c", "a"]


def test_a_subworkflow_is_compiled_with_its_parent_and_may_not_contain_itself() -> None:
    child = {"nodes": {"c": node("t/c")}}
    call = {"kind": "subworkflow", "settings": {"workflowRef": "#/flows/child"}}
    source = document({"a": node("t/a"), "sub": call}, chain("a", "sub"))
    source["flows"]["child"] = child
    plan = compile_flow(source, "x")
    assert plan.needs == (("t/a",), ("t/c",))
    assert plan.nodes[1].child is not None

    source["flows"]["child"] = {"nodes": {"back": {"kind": "subworkflow", "settings": {"workflowRef": "#/flows/x"}}}}
    assert faults(source) == {"/flows/child/nodes/back/settings/workflowRef": "leads back into itself: x -> child -> x"}
    source["flows"]["x"]["nodes"]["sub"] = {"kind": "subworkflow", "settings": {"workflowRef": "#/flows/none"}}
    assert "/flows/x/nodes/sub/settings/workflowRef" in faults(source)


def test_a_handler_that_calls_another_needs_both() -> None:
    source = document({"m": node("core/map", settings={"items": "list", "handler": "t/one"})})
    assert compile_flow(source, "x").needs == (("core/map",), ("t/one",))


def nested(depth: int, width: int) -> dict[str, Any]:
    """Flows x, f1, f2, ... each of which calls the next so many times."""
    names = ["x", *(f"f{number}" for number in range(1, depth))]
    source = document({"last": node("t/a")})
    for name, called in pairwise(names):
        call = {"kind": "subworkflow", "settings": {"workflowRef": f"#/flows/{called}"}}
        source["flows"][name] = {"nodes": {f"call{number}": call for number in range(width)}}
    source["flows"][names[-1]] = {"nodes": {"last": node("t/a")}}
    return source


def test_flows_inside_flows_are_compiled_once_and_not_without_end() -> None:
    plan = compile_flow(nested(20, 10), "x")
    assert plan.needs == (("t/a",),)
    assert "inside more than 20 others" in next(iter(faults(nested(300, 1)).values()))


def test_a_flow_has_a_bounded_size() -> None:
    many = {f"n{number}": node("t/a") for number in range(1_001)}
    assert list(faults(document(many))) == ["/flows/x"]
    assert list(faults(document(AB, [edge("a", "b")] * 4_001))) == ["/flows/x"]

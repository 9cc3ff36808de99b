"""Faults say how severe they are and, where that is known, what to do about them."""

from __future__ import annotations

import time

import pytest

from app.errors import Fault, InvalidDocument
from app.flowdsl import compile_flow
from app.flowdsl.mends import MAX_GUESSES, Guesser
from tests.flows import document, edge, node

KNOWN = frozenset({"core/log", "core/map", "t/a", "t/b"})


def refused(source: dict[str, object]) -> InvalidDocument:
    with pytest.raises(InvalidDocument) as caught:
        compile_flow(source, "x")
    return caught.value


def test_a_wrong_name_is_answered_with_the_one_that_was_probably_meant() -> None:
    nodes = {"fetch": node("t/a"), "send": node("t/b")}
    error = refused(document(nodes, [edge("fetch", "sned")], entrypoints=["fetch", "fetchh"]))
    assert [(fault.at, fault.mend) for fault in error.faults] == [
        ("/flows/x/edges/0/to", "did you mean 'send'?"),
        ("/flows/x/entrypoints/1", "did you mean 'fetch'?"),
    ]
    assert str(error).startswith("/flows/x/edges/0/to: names the node 'sned', which the flow does not have; did you")


def test_nothing_is_guessed_where_nothing_is_alike() -> None:
    [fault] = refused(document({"fetch": node("t/a")}, [edge("fetch", "zzz")])).faults
    assert fault.mend is None
    assert fault.to_wire() == {
        "at": "/flows/x/edges/0/to",
        "message": "names the node 'zzz', which the flow does not have",
        "severity": "error",
    }


def test_a_refused_document_is_told_its_warnings_too() -> None:
    error = refused(document({"a": node("t/a", "actoin")}, [edge("a", "b")]))
    assert [fault.at for fault in error.faults] == ["/flows/x/edges/0/to"]
    [warning] = error.warnings
    assert (warning.at, warning.mend, warning.severity) == (
        "/flows/x/nodes/a/kind", "did you mean 'action'?", "warning",
    )  # fmt: skip
    extra = error.extra()
    assert [fault["severity"] for fault in extra["errors"]] == ["error"]
    assert [fault["severity"] for fault in extra["warnings"]] == ["warning"]
    assert "kind" not in str(error)


def test_what_follows_from_a_fault_is_no_warning_of_its_own() -> None:
    """Without its edge the second node is not reached; saying so would send the reader to the wrong place."""
    nodes = {"a": node("t/a"), "b": node("t/b")}
    assert refused(document(nodes, [edge("a", "x")], entrypoints=["a"])).warnings == ()


def test_a_handler_that_nobody_has_may_be_one_that_is_known_by_a_like_name() -> None:
    plan = compile_flow(document({"a": node("core/lgo"), "b": node("their/own")}), "x")
    assert {warning.at: warning.mend for warning in plan.warnings(KNOWN)} == {
        "/flows/x/nodes/a": "did you mean 'core/log'?",
        "/flows/x/nodes/b": "start a worker that has one, by its NODE_MODULES or a package",
    }


def test_every_warning_says_that_it_is_one() -> None:
    source = document(
        {
            "a": node("t/a", "wizard", retryPolicy={"maxAttempts": 0, "retryOn": 5}, execution={"timeoutMs": -1}),
            "b": node("t/b"),
            "island": node("t/a"),
        },
        [
            edge("a", "b", packet="Unheard", delivery={"mode": "stream"}),
            edge("a", "b", packet=7, delivery={"mode": "ephemeral", "backend": "kafka"}),
            edge("a", "b", packet="other.yaml#/Order", when="else"),
        ],
        entrypoints=["a"],
    )  # fmt: skip
    source["flowdsl"] = "2.0.0"
    warnings = compile_flow(source, "x").warnings(frozenset())
    assert len(warnings) >= 12
    assert {warning.severity for warning in warnings} == {"warning"}
    mends = {warning.at: warning.mend for warning in warnings}
    assert mends["/flowdsl"] == 'write "1.0.0"'
    assert mends["/flows/x/edges/1/delivery/backend"] == "use redis"


def test_only_the_first_wrong_names_are_guessed_at_so_that_a_broken_document_is_refused_at_once() -> None:
    names = {f"node-number-{number:04}": node("t/a") for number in range(1_000)}
    edges = [edge("node-number-0001", f"nide-number-{number:04}") for number in range(2_000)]
    began = time.monotonic()
    faults = refused(document(names, edges)).faults
    assert time.monotonic() - began < 10
    assert len(faults) == 2_000
    assert [fault.mend is not None for fault in faults[: MAX_GUESSES + 1]] == [True] * MAX_GUESSES + [False]


def test_a_name_of_any_length_costs_nothing() -> None:
    guess = Guesser().mend
    assert guess("x" * 1_000_000, ["x"]) is None
    assert guess("xyz", ["x" * 1_000_000, "xyzz"]) == "did you mean 'xyzz'?"


def test_a_fault_reads_as_a_sentence_with_its_mend() -> None:
    assert str(Fault("", "is empty")) == "/: is empty"
    assert str(Fault.warning("/a", "is odd", "drop it")) == "/a: is odd; drop it"

"""Conditions: what holds, what does not, and what is refused with its place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.flowdsl.expressions import FILTER_ROOTS, MAX_LENGTH, compile_expression


def holds(text: str, output: Any = None, input: Any = None, meta: Any = None) -> bool:
    return compile_expression(text).holds(input or {}, {} if output is None else output, meta or {})


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("output.a == 1", {"a": 1}),
        ("output.a == 1", {"a": 1.0}),
        ("output.a > 0.5", {"a": 1}),
        ("1 < 1.5", {}),
        ("payload.a == output.a", {"a": "x"}),
        ("output.name == 'it\\'s'", {"name": "it's"}),
        ('output.name == "two words"', {"name": "two words"}),
        ("output.a && !output.b", {"a": True, "b": False}),
        ("!!output.a", {"a": True}),
        ("output.a == null", {"a": None}),
        ("'x' in output.tags", {"tags": ["x"]}),
        ("output.n in [1, 2]", {"n": 2.0}),
        ("output.tags.length > 0", {"tags": [1]}),
        ("output.items[output.tags.length - 1].name.length == 3", {"items": [{"name": "abc"}], "tags": [0]}),
        ("size(output.tags) == 2", {"tags": [1, 2]}),
        ("output.length == 7", {"length": 7}),
        ("output.text == 'a.length'", {"text": "a.length"}),
        ("(output.a + output.b).length == 2", {"a": "x", "b": "y"}),
        ("output.a == 1 || output.nothing.at.all == 2", {"a": 1}),
        ("output == 'plain text'", "plain text"),
        ("output.a == 1 // the rest is a remark", {"a": 1}),
        ("output.tags.exists(t, !(t == 'x'))", {"tags": ["y"]}),
        ("output.a == 1 ? !output.b : false", {"a": 1, "b": False}),
    ],
)
def test_a_condition_holds(text: str, output: Any) -> None:
    assert holds(text, output)


@pytest.mark.parametrize(
    "text",
    [
        "output.a == 1", "output.a != 1", "output.a < 1", "output.a >= 1", "output.a in [1]", "'x' in output.a",
        "output.a", "output.a.b.c == 1", "output.a.length == 0", "size(output.a) == 0", "output.a == output.b",
        "output.text < 1", "output.text.a == 1", "output.text", "output.n && true", "'text'", "1",
    ],
)  # fmt: skip
def test_what_is_missing_or_of_another_kind_makes_a_comparison_false(text: str) -> None:
    assert not holds(text, {"text": "x", "n": 1})


@pytest.mark.parametrize(
    "text",
    [
        "!(output.a == 1)", "!output.a", "!(output.a < 1) && output.ok", "output.ok && !(output.a == 1 || output.b)",
        "!(!(!(output.a == 1)))", "!output.a.b.c", "!!output.ok", "!(output.tags.length > 0)",
    ],
)  # fmt: skip
def test_the_opposite_of_a_false_comparison_holds(text: str) -> None:
    assert holds(text, {"ok": True})


def test_a_condition_speaks_of_the_packet_that_came_in_and_of_the_runs_meta() -> None:
    text = "input.meta.intent == 'handoff' && meta.tier == 'gold'"
    assert holds(text, input={"meta": {"intent": "handoff"}}, meta={"tier": "gold"})
    assert not holds(text, input={"meta": {"intent": "chat"}}, meta={"tier": "gold"})


def test_a_filter_may_also_speak_of_the_message() -> None:
    text = "message.payload.priority == 'urgent' && input.priority == 'urgent'"
    expression = compile_expression(text, roots=FILTER_ROOTS)
    assert expression.admits({"priority": "urgent"}, {})
    assert not expression.admits({"priority": "low"}, {})
    with pytest.raises(ValueError, match="'message' is unknown"):
        compile_expression(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("output.a === 1", "line 1, column 12: .*compare with == and !="),
        ("output.a = 1", "line 1, column 10: .*compare with == and !="),
        ("output.a ==", "line 1, column 12"),
        ("output.a\n  == 1 &&", "line 2, column 10"),
        ("", "line 1, column 1"),
        ("result.a == 1", "'result' is unknown; a condition speaks of input, output, payload, meta"),
        ("open('/etc/passwd')", "'open' is unknown"),
        ("output.__class__.mro()", "'mro' is unknown"),
        ("'unclosed", "line 1, column 1"),
        ("(" * 40 + "true" + ")" * 40, "nested more than 32 levels"),
        ("!(" * 40 + "true" + ")" * 40, "nested more than 32 levels"),
        ("a" * (MAX_LENGTH + 1), "characters long"),
    ],
)
def test_what_is_no_condition_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compile_expression(text)


def test_a_condition_has_a_budget() -> None:
    many = {"l": list(range(400))}
    assert not holds("output.l.all(x, output.l.all(y, output.l.all(z, x + y + z >= 0)))", many)
    assert not holds("output.text.matches('(a+)+$')", {"text": "a" * 20_000 + "b"})


def test_attributes_of_python_are_not_reached() -> None:
    for text in ("output.__class__ == 1", "output.keys == 1", "meta.__dict__ == 1", "!(output.__len__ == 1) && false"):
        assert not holds(text, {"a": 1})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcl"), inner, max_size=3),
    max_leaves=8,
)
paths = st.sampled_from(
    ["output", "input.a", "output.a", "payload.a.b", "meta.c", "output.l.length", "output.a.length", "size(output.l)"]
)
literals = st.sampled_from(["1", "0.5", "'x'", "true", "null", "[1, 'x']", "-3"])
comparisons = st.builds(
    lambda left, operator, right: f"{left} {operator} {right}",
    paths, st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "in"]), literals | paths,
)  # fmt: skip
conditions = st.recursive(
    comparisons | paths,
    lambda inner: st.one_of(
        st.builds(lambda a, operator, b: f"{a} {operator} {b}", inner, st.sampled_from(["&&", "||"]), inner),
        st.builds(lambda a: f"!({a})", inner),
        st.builds(lambda a: f"({a})", inner),
    ),
    max_leaves=4,
)


@settings(max_examples=60, deadline=None)
@given(text=conditions, input=json_values, output=json_values, meta=json_values)
def test_a_condition_never_raises_and_its_opposite_is_its_opposite(
    text: str, input: Any, output: Any, meta: Any
) -> None:
    held = compile_expression(text).holds(input, output, meta)
    assert compile_expression(f"!({text})").holds(input, output, meta) is not held


@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet="output.aml!=&|<>()[]'\" 1?:,", max_size=30), output=json_values)
def test_any_text_is_refused_or_never_raises(text: str, output: Any) -> None:
    try:
        expression = compile_expression(text)
    except ValueError:
        return
    assert expression.holds({}, output, {}) in (True, False)

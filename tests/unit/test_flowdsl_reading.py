"""Reading documents: bounds, places, and JSON and YAML meaning the same."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import InvalidDocument
from app.flowdsl import content_hash, read
from app.flowdsl.reading import MAX_BYTES


def refusal(text: str | bytes, media_type: str | None = None) -> str:
    with pytest.raises(InvalidDocument) as caught:
        read(text if isinstance(text, bytes) else text.encode(), media_type)
    return str(caught.value)


def test_json_and_yaml_give_the_same_document_and_hash() -> None:
    value = {"flowdsl": "1.0.0", "flows": {"x": {"nodes": {"a": {"settings": {"n": 1, "f": 0.5, "t": [None, True]}}}}}}
    as_yaml = read(b'flowdsl: "1.0.0"\nflows:\n  x:\n    nodes: {a: {settings: {t: [null, true], f: 0.5, n: 1}}}\n')
    assert read(json.dumps(value).encode()) == as_yaml == value
    assert content_hash(as_yaml, "x") == content_hash(value, "x")
    assert content_hash(value, "x") != content_hash(value, "y")


def test_the_media_type_decides_before_the_looks() -> None:
    assert read(b"{a: 1}", "application/yaml") == {"a": 1}
    assert read(b'{"a": 1}', "application/vnd.x+json; charset=utf-8") == {"a": 1}
    assert "line 1, column 2" in refusal("{a: 1}")
    assert "line 1, column 1" in refusal("a: 1", "application/json")


def test_yaml_scalars_are_those_of_json_and_nothing_else() -> None:
    text = (
        "a: yes\nb: 2026-11-30\nc: 12:30\nd: 0x1f\ne: 1e3\nf: ~\ng: .inf\nh: '1'\ni: !!str 2\n404: x\ntrue: y\nj: 010"
    )
    assert read(text.encode()) == {
        "a": "yes", "b": "2026-11-30", "c": "12:30", "d": 31, "e": 1000.0, "f": None, "g": ".inf", "h": "1", "i": "2",
        "404": "x", "true": "y", "j": 10,
    }  # fmt: skip


def test_yaml_anchors_and_merge_keys_work() -> None:
    assert read(b"base: &b {x: 1, y: 2}\nc:\n  y: 3\n  <<: *b\nd: [*b, *b]") == {
        "base": {"x": 1, "y": 2}, "c": {"x": 1, "y": 3}, "d": [{"x": 1, "y": 2}] * 2,
    }  # fmt: skip


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\xff\xfe", "not UTF-8 at byte 0"),
        ("", "is empty"),
        ("just text", "must be an object"),
        ("[1]", "must be an object"),
        ('{"a": 1, "b": {"x": 1, "x": 2}}', "/b: has the key 'x' twice"),
        ('{"a": [{"k/k": {"x": 1, "x": 2}}]}', "/a/0/k~1k: has the key 'x' twice"),
        ("a: 1\nb: 2\na: 3", "has the key 'a' twice (line 3, column 1); keep one"),
        ('{"a": NaN}', "NaN"),
        ('{"a": 1e999}', "/a: is inf"),
        ('{"a": 9007199254740993}', "/a: is 9007199254740993, beyond 2**53 - 1"),
        ('{"a": "\\ud800"}', "/a: has a lone surrogate"),
        ('{"a":' + "9" * 5000 + "}", "digits"),
        ('{"a":' + "[" * 5000 + "]" * 5000 + "}", "nested more than 60 levels"),
        ('{"a":' + "[" * 70 + "]" * 70 + "}", "nested more than 60 levels"),
        ("a: " + "[" * 70 + "]" * 70, "nested more than 60 levels"),
        ("a: " + "[" * 5000, "line 1"),
        (BOMB, "more than 200,000 values"),
        ("a: &a [*a]", "*a names no anchor that ends before it (line 1, column 8)"),
        ("a: !!python/object/apply:os.system [x]", "only plain JSON values"),
        ("a: !!binary aGk=", "only plain JSON values"),
        ("a: [1", "line"),
        ("? [a]\n: b", "key that is no text"),
        ("a: 1\n---\nb: 2", "several YAML documents"),
        ("a: 1\0", "no YAML"),
        ("a:\n  <<: 3", "can only merge objects"),
        ("#" * (MAX_BYTES + 1), "bytes and may have"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str | bytes, message: str) -> None:
    assert message in refusal(text)


json_objects = st.dictionaries(
    st.text(max_size=6),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=6)
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(json_objects)
def test_reading_gives_back_what_was_written(value: dict[str, Any]) -> None:
    assert read(json.dumps(value).encode(), "application/json") == value


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=40) | st.text(alphabet="{}[]:,-&*!|>'\"ab1 \n\t#?%@~", max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    for media_type in (None, "application/json", "application/yaml"):
        with suppress(InvalidDocument):
            assert isinstance(read(raw, media_type), dict)

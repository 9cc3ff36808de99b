"""Reading FlowDSL text, JSON or YAML, into plain JSON values; bounded, whatever the text is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

import yaml

from app.errors import Fault, InvalidDocument
from app.models.json_value import find_fault

MAX_BYTES: Final = 2_000_000
MAX_DEPTH: Final = 60
MAX_VALUES: Final = 200_000
"""Values that a document may hold once its YAML aliases are written out."""
KEEP_ONE: Final = "keep one"


def read(raw: bytes, media_type: str | None = None) -> dict[str, Any]:
    """Read a FlowDSL document.

    ``media_type`` decides between JSON and YAML; without one, text that begins with ``{`` is JSON. YAML is read by
    the JSON schema of YAML 1.2 plus merge keys: ``yes`` and ``2026-11-30`` are text, and no tag makes anything else.

    Raises:
        InvalidDocument: too large, too deep, not UTF-8, bad syntax (with line and column), a key that occurs twice, an
            alias bomb, a value that JSON cannot carry unchanged, or no object.
    """
    if len(raw) > MAX_BYTES:
        _refuse("", f"is {len(raw):,} bytes and may have {MAX_BYTES:,}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        _refuse("", f"is not UTF-8 at byte {error.start}")
    document = _read_json(text) if _is_json(text, media_type) else _YamlReader(text).read()
    if not isinstance(document, dict):
        _refuse("", "must be an object with 'flowdsl', 'info' and 'flows'")
    if (fault := find_fault(document)) is not None:
        raise InvalidDocument.of([fault])
    return document


def _is_json(text: str, media_type: str | None) -> bool:
    kind = (media_type or "").split(";")[0].strip().lower()
    if kind.endswith("json"):
        return True
    return "yaml" not in kind and text.lstrip()[:1] == "{"


def _refuse(at: str, message: str, mend: str | None = None) -> NoReturn:
    raise InvalidDocument.of([Fault(at, message, mend)])


# --- JSON --------------------------------------------------------------------------------------------------------


def _read_json(text: str) -> Any:
    doubled: list[tuple[dict[str, Any], str]] = []

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            keys = [key for key, _ in pairs]
            doubled.append((value, next(key for key in keys if keys.count(key) > 1)))
        return value

    try:
        document = json.loads(text, object_pairs_hook=once, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        _refuse("", f"line {error.lineno}, column {error.colno}: {error.msg}")
    except RecursionError:
        _refuse("", f"is nested more than {MAX_DEPTH} levels deep")
    except ValueError as error:
        _refuse("", str(error))
    _check_depth(document)
    if doubled:
        where = {id(value): at for at, value in _objects(document)}
        raise InvalidDocument.of([Fault(where.get(id(value), ""), _twice(key), KEEP_ONE) for value, key in doubled])
    return document


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"has {name}, which JSON cannot say")


def _check_depth(document: Any) -> None:
    level = [document]
    for _ in range(MAX_DEPTH):
        level = [item for value in level if isinstance(value, dict | list) for item in _items(value)]
        if not level:
            return
    _refuse("", f"is nested more than {MAX_DEPTH} levels deep")


def _items(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def _objects(value: Any, at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every object in ``value`` with its JSON pointer."""
    if isinstance(value, dict):
        yield at, value
        for key, item in value.items():
            yield from _objects(item, f"{at}/{escape(key)}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _objects(item, f"{at}/{index}")


def escape(key: str) -> str:
    """Write a key as one step of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _twice(key: str) -> str:
    return f"has the key {key!r} twice"


# --- YAML --------------------------------------------------------------------------------------------------------

_NULL = re.compile(r"null|Null|NULL|~|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]{1,400}|0o[0-7]{1,100}|0x[0-9a-fA-F]{1,100}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CORE_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")}


class _YamlReader:
    """Builds JSON values from YAML events. Aliases are counted as if written out, so that none can explode."""

    def __init__(self, text: str) -> None:
        self._events: Iterator[Any] = yaml.parse(text, Loader=yaml.CSafeLoader)
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._values = 0

    def read(self) -> Any:
        try:
            return self._document()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
            _refuse("", f"{where}{error.problem or error.context or 'is no YAML'}")
        except yaml.YAMLError as error:
            _refuse("", f"is no YAML: {str(error).splitlines()[0]}")

    def _document(self) -> Any:
        next(self._events)
        first = next(self._events)
        if isinstance(first, yaml.StreamEndEvent):
            _refuse("", "is empty")
        value = self._value(next(self._events), "", 0)
        next(self._events)
        if not isinstance(next(self._events), yaml.StreamEndEvent):
            _refuse("", "holds several YAML documents; send one")
        return value

    def _value(self, event: Any, at: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            self._fault(event, at, f"is nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                self._fault(event, at, f"*{event.anchor} names no anchor that ends before it")
            value, size = self._anchors[event.anchor]
            self._count(event, at, size)
            return value
        before = self._values
        self._count(event, at, 1)
        value = self._build(event, at, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, self._values - before)
        return value

    def _build(self, event: Any, at: str, depth: int) -> Any:
        if event.tag is not None and event.tag not in _CORE_TAGS and event.tag != "!":
            self._fault(event, at, f"has the tag {event.tag!r}; only plain JSON values are read")
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
                items.append(self._value(event, f"{at}/{len(items)}", depth + 1))
            return items
        return self._mapping(at, depth)

    def _mapping(self, at: str, depth: int) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._fault(event, at, "has a key that is no text")
            key = event.value
            place = f"{at}/{escape(key)}"
            value = self._value(next(self._events), place, depth + 1)
            if key == "<<" and not event.style:
                for source in value if isinstance(value, list) else [value]:
                    if not isinstance(source, dict):
                        self._fault(event, place, "can only merge objects")
                    merged = source | merged
                continue
            if key in own:
                self._fault(event, at, _twice(key), KEEP_ONE)
            own[key] = value
        return merged | own if merged else own

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        if event.style or event.tag == "!" or (event.tag or "").endswith(":str"):
            return text
        if _NULL.fullmatch(text):
            return None
        if _TRUE.fullmatch(text):
            return True
        if _FALSE.fullmatch(text):
            return False
        if _INT.fullmatch(text):
            return int(text, 0 if text[:2] in ("0o", "0x") else 10)
        return float(text) if _FLOAT.fullmatch(text) else text

    def _count(self, event: Any, at: str, size: int) -> None:
        self._values += size
        if self._values > MAX_VALUES:
            self._fault(event, at, f"holds more than {MAX_VALUES:,} values with its aliases written out")

    def _fault(self, event: Any, at: str, message: str, mend: str | None = None) -> NoReturn:
        mark = event.start_mark
        _refuse(at, f"{message} (line {mark.line + 1}, column {mark.column + 1})", mend)

"""What may travel as JSON without changing on the way through Redis, MongoDB and ``JSON.parse``."""

from __future__ import annotations

import math
from typing import Any

import orjson

from app.errors import BadRequest, Fault

MAX_SAFE_INTEGER = 2**53 - 1
MAX_DEPTH = 100


def dumps(value: Any) -> str:
    """Write ``value`` as compact JSON text. ``value`` must have passed :func:`find_fault` or be our own."""
    return orjson.dumps(value).decode()


def loads(text: str | bytes) -> Any:
    """Read JSON text written by :func:`dumps`."""
    return orjson.loads(text)


def canonical(value: Any) -> bytes:
    """Write ``value`` so that equal values give equal bytes (sorted keys); for hashing."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def find_fault(value: Any, at: str = "") -> Fault | None:
    """Return the first place in ``value`` that would not survive as JSON, or ``None``.

    Refused: types that JSON lacks, NaN and infinities, integers beyond 2**53 - 1 (JavaScript rounds them), keys that
    are no strings, lone surrogates, and more than 100 levels.
    """
    return None if _sound(value, 0) else _walk(value, at, 0)


def check_json(value: Any, at: str = "", *, max_bytes: int | None = None) -> None:
    """Raise :class:`BadRequest` naming the first place of ``value`` that cannot travel as JSON unchanged."""
    fault = find_fault(value, at)
    if fault is None and max_bytes is not None:
        size = len(orjson.dumps(value))
        if size > max_bytes:
            fault = Fault(at, f"is {size:,} bytes as JSON and may have {max_bytes:,}")
    if fault is not None:
        raise BadRequest.of([fault])


def _sound(value: Any, depth: int) -> bool:
    """Return whether :func:`_walk` finds nothing. Most values have no fault, and places cost most of the time."""
    kind = type(value)
    if kind is str:
        return _encodable(value)
    if value is None or kind is bool:
        return True
    if kind is int:
        return bool(-MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER)
    if kind is float:
        return math.isfinite(value)
    if kind is dict:
        if depth >= MAX_DEPTH and value:
            return False
        for key, item in value.items():
            if type(key) is not str or not _encodable(key) or not _sound(item, depth + 1):
                return False
        return True
    if kind is list or kind is tuple:
        if depth >= MAX_DEPTH and value:
            return False
        for item in value:  # noqa: SIM110 - all() with a generator takes twice as long
            if not _sound(item, depth + 1):
                return False
        return True
    return False


def _walk(value: Any, at: str, depth: int) -> Fault | None:
    if depth > MAX_DEPTH:
        return Fault(at[:200], f"is nested more than {MAX_DEPTH} levels deep")
    kind = type(value)
    if value is None or kind is bool:
        return None
    if kind is str:
        return None if _encodable(value) else Fault(at, "has a lone surrogate, which is no character")
    if kind is int:
        if abs(value) > MAX_SAFE_INTEGER:
            return Fault(at, f"is {value}, beyond 2**53 - 1, where JSON readers round; send it as a string")
        return None
    if kind is float:
        return None if math.isfinite(value) else Fault(at, f"is {value}, which JSON cannot say")
    if kind is list or kind is tuple:
        for index, item in enumerate(value):
            if (fault := _walk(item, f"{at}/{index}", depth + 1)) is not None:
                return fault
        return None
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                return Fault(at, f"has the key {key!r}, which is no string")
            if not _encodable(key):
                return Fault(at, "has a key with a lone surrogate, which is no character")
            place = f"{at}/{key.replace('~', '~0').replace('/', '~1')}"
            if (fault := _walk(item, place, depth + 1)) is not None:
                return fault
        return None
    return Fault(
        at, f"is a {kind.__name__}, which JSON cannot say; send text, numbers, true, false, null, lists, objects"
    )


def _encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

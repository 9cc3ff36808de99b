"""Paths into packets, ``a.b.0.c``, as settings of the built-in handlers use them."""

from __future__ import annotations

from typing import Any, Final

MISSING: Final = object()
"""What is at a path that leads nowhere."""


def get(value: Any, path: str) -> Any:
    """Return what is at ``path`` in ``value``, or :data:`MISSING`. Numbers are indexes into lists; ``""`` is all."""
    for key in path.split(".") if path else ():
        if isinstance(value, dict):
            value = value.get(key, MISSING)
        elif isinstance(value, list) and key.isdecimal() and key.isascii() and int(key) < len(value):
            value = value[int(key)]
        else:
            return MISSING
    return value


def put(packet: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return ``packet`` with ``value`` at ``path``; objects on the way are made, ``packet`` is not changed."""
    key, _, rest = path.partition(".")
    if not rest:
        return packet | {key: value}
    inner = packet.get(key)
    return packet | {key: put(inner if isinstance(inner, dict) else {}, rest, value)}


def drop(packet: dict[str, Any], path: str) -> dict[str, Any]:
    """Return ``packet`` without what is at ``path``; ``packet`` is not changed."""
    key, _, rest = path.partition(".")
    if not rest:
        return {name: item for name, item in packet.items() if name != key}
    inner = packet.get(key)
    return packet | {key: drop(inner, rest)} if isinstance(inner, dict) else packet

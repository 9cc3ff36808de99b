"""Time as Rolecall writes it: milliseconds inside, RFC 3339 in UTC with ``Z`` on the wire.

Nothing in the core reads a clock. Whoever needs the time takes a :class:`Clock`, or is told the time of the live
store's server, which is the only clock that decides anything about a run or a heartbeat.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], int]
"""Returns the time now in milliseconds since 1970-01-01T00:00:00Z."""

Monotonic = Callable[[], float]
"""Returns seconds of a clock that never goes back; only differences mean something."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - writes no offset, since "Z" is one


def system_clock() -> int:
    """Return this machine's time in milliseconds. Only edges use it (log lines, ages in a page)."""
    return time.time_ns() // 1_000_000


def to_rfc3339(ms: int) -> str:
    """Write milliseconds since 1970 as RFC 3339, for example ``2026-11-30T21:40:00.123Z``."""
    moment = _NAIVE_EPOCH + timedelta(milliseconds=ms)
    return f"{moment.isoformat(timespec='milliseconds')}Z"


def from_rfc3339(text: str) -> int:
    """Read an RFC 3339 time with an offset as milliseconds since 1970.

    Raises:
        ValueError: the text is no such time, or has no offset (a naive time could mean anything).
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; write it like 2026-11-30T21:40:00Z")
    return (moment - _EPOCH) // timedelta(milliseconds=1)

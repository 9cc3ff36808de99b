"""How pages word times, numbers, states and reasons."""

from __future__ import annotations

import json
from typing import Any

from app.clock import from_rfc3339, system_clock, to_rfc3339

REASONS = {
    "no_workers": "no workers",
    "unhealthy": "unhealthy",
    "does_not_execute": "runs no flows",
    "draining": "draining",
    "missing_handler": "lacks a handler",
    "flow_not_published": "no published version",
    "version_not_found": "version not found",
    "no_role": "no role",
    "zero_weight": "weight 0",
    "saturated": "all slots busy",
    "waiting_turn": "waiting its turn",
    "newer_schema": "needs a newer worker",
    "only_role": "the only eligible role",
    "most_free": "most free capacity",
    "default_role": "the default role",
    "own_role": "the role of the process that was asked",
    "first_role": "the first role named",
    "sticky": "by its session",
    "draw": "by a weighted draw",
    "only": "the only variant left",
}
"""Codes of :mod:`app.resolver`, :mod:`app.roles` and ``waitingFor`` in words; an unknown one is shown as it is."""


def reason(code: str | None) -> str:
    return "" if code is None else REASONS.get(code, code.replace("_", " "))


def span(seconds: float | None) -> str:
    """Say a length of time: ``420 ms``, ``3.2 s``, ``4 min``, ``2 h``, ``5 d``."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    for limit, size, unit in ((3600, 60, "min"), (86_400, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def ago(ms: int) -> str:
    """Say how long ago a time was, by this machine's clock; the page's script keeps it current."""
    seconds = max(0.0, (system_clock() - ms) / 1000)
    return "just now" if seconds < 2 else f"{span(float(int(seconds)))} ago".replace(".0 s", " s")


def full_time(ms: int) -> str:
    """Write a time in full."""
    return to_rfc3339(ms)[:19].replace("T", " ") + " UTC"


def pretty(value: Any) -> str:
    """Write JSON for reading."""
    return json.dumps(value, indent=2, ensure_ascii=False)


FILTERS = {
    "reason": reason,
    "span": span,
    "ago": ago,
    "full_time": full_time,
    "rfc3339": to_rfc3339,
    "ms": from_rfc3339,
    "pretty": pretty,
}

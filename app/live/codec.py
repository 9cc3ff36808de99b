"""How a run and its events lie in Redis.

A run is a hash. What changes has a field of its own, so that an append touches a few bytes; everything else is one
JSON text under ``base``, so that a claim answers with the whole run in one reply. Fields bear the names of
:meth:`app.models.run.Run.to_record`; numbers are decimal, JSON values (``worker``, ``error``, ``output``) JSON text,
and nothing is the empty string. Payloads are made and read here and are opaque text to every script: Redis' own JSON
library turns ``[]`` into ``{}`` and rounds large numbers.

An event is an entry ``<seq>-<epoch>`` of the run's stream with the fields ``attempt``, ``at`` (ms) and ``event``, a
JSON object with ``type``, ``node`` and ``data``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.models.event import Event, NewEvent
from app.models.json_value import dumps, loads
from app.models.run import Run

STATE = (
    "status", "schema", "targetRole", "attempt", "seq", "rev", "cancel", "losses", "token", "batch", "expiresMs",
    "epoch",
)  # fmt: skip
"""The small fields that most scripts read. ``token`` and ``batch`` belong to the lease and not to the run."""

FIELDS = (
    *STATE, "notBeforeMs", "retries", "createdMs", "startedMs", "endedMs", "waitingFor", "worker", "error", "output",
    "excluded", "base",
)  # fmt: skip
"""Every field that makes a run, in the order in which scripts hold and return it."""

_SEPARATOR = "\x1f"
"""Between the words of an answer. JSON text has no control characters, and nothing else in an answer has any."""

_INTEGERS = (
    "schema", "attempt", "seq", "rev", "losses", "notBeforeMs", "retries", "createdMs", "startedMs", "endedMs",
    "expiresMs", "epoch",
)  # fmt: skip
_JSON = ("worker", "error", "output")
_TEXTS = ("status", "targetRole", "waitingFor")
_APART = {*_INTEGERS, *_JSON, *_TEXTS, "excluded", "cancelRequested", "createdAt", "startedAt", "endedAt"}
"""Keys of a record that ``base`` does not have: they have their own field, or follow from one."""


def run_fields(run: Run) -> dict[str, str]:
    """Return the hash of a run just made, but for ``createdMs``."""
    record = run.to_record()
    fields = {name: _or_empty(record[name], str) for name in _INTEGERS}
    fields |= {name: _or_empty(record.get(name), str) for name in _TEXTS}
    fields |= {name: _or_empty(record[name], dumps) for name in _JSON}
    del fields["createdMs"]
    return fields | {
        "cancel": "requested" if run.cancel_requested else "",
        "excluded": "".join(map(excluded_entry, run.excluded)),
        "base": dumps({key: value for key, value in record.items() if key not in _APART}),
    }


def excluded_entry(instance_id: str) -> str:
    """Return what ``excluded`` holds for an instance. JSON text has no newline, so no entry is part of another."""
    return f"\n{dumps(instance_id)}\n"


def read_run(text: str) -> Run:
    """Read a run that a script returned."""
    fields = dict(zip(FIELDS, text.split(_SEPARATOR), strict=True))
    record: dict[str, Any] = loads(fields["base"])
    for name in _INTEGERS:
        record[name] = int(fields[name]) if fields[name] else None
    for name in _JSON:
        record[name] = loads(fields[name]) if fields[name] else None
    for name in _TEXTS:
        record[name] = fields[name] or None
    record["cancelRequested"] = fields["cancel"] != ""
    record["excluded"] = [loads(entry) for entry in fields["excluded"].split("\n") if entry]
    return Run.from_record(record)


def event_text(event: NewEvent) -> str:
    """Return the ``event`` field of a stream entry."""
    body: dict[str, Any] = {"type": event.type}
    if event.node is not None:
        body["node"] = event.node
    if event.data is not None:
        body["data"] = event.data
    return dumps(body)


def read_events(run_id: str, text: str) -> list[Event]:
    """Read the events that a script returned."""
    words = iter(text.split(_SEPARATOR) if text else ())
    return [
        _event(run_id, entry_id, int(attempt), int(at_ms), loads(body))
        for entry_id, attempt, at_ms, body in zip(words, words, words, words, strict=True)
    ]


def _event(run_id: str, entry_id: str, attempt: int, at_ms: int, body: dict[str, Any]) -> Event:
    seq, epoch = map(int, entry_id.split("-"))
    return Event(run_id, seq, attempt, body["type"], at_ms, body.get("node"), body.get("data"), epoch)


def _or_empty(value: Any, write: Callable[[Any], str]) -> str:
    return "" if value is None else write(value)

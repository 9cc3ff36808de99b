"""The documents that stores keep, and how to read them back: one shape for memory and MongoDB.

What people put in (inputs, outputs, FlowDSL documents, event data) is kept as JSON text: a document store would
otherwise refuse or change keys with dots and dollars, or large numbers. What lists filter and order by stands beside
the text in fields of its own. Fields that a newer version added are ignored.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from app.errors import BadRequest, Fault
from app.models.deployment import Deployment
from app.models.event import Event
from app.models.flow import Flow, FlowVersion
from app.models.json_value import dumps, loads
from app.models.run import Run
from app.ports import Page, RunFilter

S = TypeVar("S")
T = TypeVar("T")
Document = dict[str, Any]

_APART = ("input", "idempotencyKey", "bodyHash")
"""Fields of a run that a mirror never changes; kept beside the text of the rest."""


# --- flows and deployments ---------------------------------------------------------------------------------------


def flow_of(document: Document) -> Flow:
    return Flow.model_validate(document | {"flowId": document["_id"]})


def version_document(version: FlowVersion) -> Document:
    wire = version.to_wire()
    return wire | {"needs": dumps(wire["needs"]), "document": dumps(wire["document"])}


def version_of(document: Document) -> FlowVersion:
    texts = {"needs": loads(document["needs"]), "document": loads(document["document"])}
    return FlowVersion.model_validate(document | texts)


def deployment_document(deployment: Deployment) -> Document:
    flows = sorted({variant.flow_id for variant in deployment.variants})
    return {"_id": deployment.id, "rev": deployment.rev, "flows": flows, "deployment": dumps(deployment.to_wire())}


def deployment_of(document: Document) -> Deployment:
    return Deployment.model_validate(loads(document["deployment"]))


# --- runs --------------------------------------------------------------------------------------------------------


def position(run: Run) -> str:
    """Return what lists order by: the time of acceptance, then the id. It must never change, or pages would skip."""
    return f"{run.created_ms:015d}.{run.run_id}"


def run_document(run: Run) -> Document:
    given = dumps(run.input)
    document: Document = {
        "_id": run.run_id,
        "position": position(run),
        "deployment": run.deployment_id,
        "input": given,
        "inputSize": len(given),
    }
    session = run.meta.get("session_id")
    if session is not None:
        document["session"] = str(session)
    if run.idempotency_key is not None:
        document |= {"idempotencyKey": run.idempotency_key, "bodyHash": run.body_hash}
    return document | run_changes(run)


def run_changes(run: Run) -> Document:
    """Return the fields that follow a run through its life; the others stay as they were inserted."""
    record = run.to_record()
    for name in _APART:
        del record[name]
    text = dumps(record)
    return {
        "variant": run.variant,
        "role": run.target_role,
        "status": run.status.value,
        "rev": run.rev,
        "run": text,
        "size": len(text),
    }


def run_of(document: Document) -> Run:
    apart = {
        "input": loads(document["input"]),
        "idempotencyKey": document.get("idempotencyKey"),
        "bodyHash": document.get("bodyHash"),
    }
    if document.get("cancel"):
        apart["cancelRequested"] = True
    return Run.from_record(loads(document["run"]) | apart)


def run_filter(where: RunFilter) -> dict[str, str]:
    """Return the fields of :func:`run_document`, and their values, that a filter asks for."""
    # Those that leave fewest runs first, for servers that take the first for the index.
    asked = {
        "session": where.session,
        "deployment": where.deployment,
        "status": None if where.status is None else where.status.value,
        "role": where.role,
        "variant": where.variant,
    }
    return {name: value for name, value in asked.items() if value is not None}


# --- pages -------------------------------------------------------------------------------------------------------


def page(found: Sequence[S], limit: int, read: Callable[[S], T], key: Callable[[S], str]) -> Page[T]:
    """Make a page of at most ``limit`` items; that ``found`` has more than that says that the list goes on."""
    return Page([read(item) for item in found[:limit]], key(found[limit - 1]) if len(found) > limit else None)


_POSITION = re.compile(r"[0-9]{15}\..+", re.DOTALL)


def cursor_of(place: str) -> str:
    """Return the opaque, URL-safe cursor of a run's position."""
    return base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")


def read_cursor(cursor: str | None) -> str | None:
    """Return the position that :func:`cursor_of` was given.

    Raises:
        BadRequest: it is no cursor of ours.
    """
    if cursor is None:
        return None
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        place = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        place = ""
    if not _POSITION.fullmatch(place):
        raise _no_cursor(cursor)
    return place


def read_number_cursor(cursor: str | None) -> int | None:
    """Return the version number at which a page of versions ended.

    Raises:
        BadRequest: it is no cursor of ours.
    """
    if cursor is None:
        return None
    if not re.fullmatch(r"[0-9]{1,15}", cursor):
        raise _no_cursor(cursor)
    return int(cursor)


def _no_cursor(cursor: str) -> BadRequest:
    message = f"{cursor[:80]!r} is no cursor; send back the `next` of the page before, unchanged"
    return BadRequest.of([Fault("/after", message)])


# --- events ------------------------------------------------------------------------------------------------------

CHUNK_EVENTS = 1000
CHUNK_CHARS = 2_000_000
"""A chunk closes once its JSON text is this long; even in UTF-8 and with one huge event more it fits a document."""


def check_sequence(run_id: str, events: Sequence[Event]) -> None:
    """Raise ``ValueError`` unless ``events`` are numbered without gaps: a hole could never be seen later."""
    for before, event in pairwise(events):
        if event.seq != before.seq + 1:
            raise ValueError(f"events of run {run_id} must follow each other: {before.seq} is followed by {event.seq}")


def check_joins(run_id: str, stored: int, events: Sequence[Event]) -> None:
    """Raise ``ValueError`` if an event is missing between the last stored one and ``events``."""
    if events[0].seq > stored + 1:
        raise ValueError(f"events of run {run_id} must join what is stored: there is no {events[0].seq - 1} yet")


def event_chunks(run_id: str, events: Sequence[Event]) -> list[Document]:
    """Split events into documents of bounded size, each with its first and last ``seq``."""
    chunks: list[Document] = []
    texts: list[str] = []
    size = 0
    for index, event in enumerate(events):
        texts.append(dumps(event.to_wire()))
        size += len(texts[-1])
        if size >= CHUNK_CHARS or len(texts) == CHUNK_EVENTS or index == len(events) - 1:
            first = event.seq - len(texts) + 1
            text = f"[{','.join(texts)}]"
            chunks.append({"_id": f"{run_id}:{first}", "runId": run_id, "last": event.seq, "events": text})
            texts, size = [], 0
    return chunks


def events_of(chunk: Document) -> list[Event]:
    return [Event.from_wire(wire) for wire in loads(chunk["events"])]

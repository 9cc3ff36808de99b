"""Things to put into a store."""

from __future__ import annotations

import hashlib
from typing import Any

from app.models.deployment import Deployment, DeploymentIn
from app.models.event import NODE_PROGRESS, Event
from app.models.flow import FlowVersion
from app.models.run import Run
from app.ports import Store

NOW = "2026-11-30T21:40:00.000Z"
LATER = "2026-11-30T21:50:00.000Z"

AWKWARD: dict[str, Any] = {
    "a.b": {"$set": 1, "": None, "__proto__": []},
    "$where": "1",
    "zero": [],
    "none": {},
    "big": 2**53 - 1,
    "small": -(2**53) + 1,
    "float": 0.1,
    "text": "line\r\n\u2028\u0000é漢🦊",
    "order": {"z": 1, "a": 2, "m": [True, False, None, 1, 1.0, "1"]},
}
"""JSON that a document store would like to change or refuse."""


def save(store: Store, flow_id: str, content: Any, *, title: str = "", now: str = NOW) -> tuple[FlowVersion, bool]:
    """Save a version whose document says ``content``."""
    return store.save_version(
        flow_id,
        flow_name=flow_id,
        document={"content": content},
        content_hash=hashlib.sha256(repr(content).encode()).hexdigest(),
        needs=(("core/log",), ("a/b", "c/d")),
        title=title,
        now=now,
    )


def deployment(ident: str, rev: int, **fields: Any) -> Deployment:
    body = DeploymentIn.model_validate(
        {"variants": [{"label": "main", "flowId": "f", "weight": 1, "targetRoles": ["worker"]}]} | fields
    )
    return Deployment.create(ident, body, rev=rev, created_at=NOW, updated_at=NOW)


def run(run_id: str, **fields: Any) -> Run:
    fixed: dict[str, Any] = {
        "deployment_id": "shop",
        "variant": "main",
        "flow_id": "f",
        "version_id": "0123456789abcdef",
        "target_role": "worker",
        "created_ms": 1_796_000_000_000,
    }
    return Run(run_id=run_id, **(fixed | fields))


def events(run_id: str, first: int, last: int, *, text: str = "") -> list[Event]:
    return [
        Event(run_id, seq, 1, NODE_PROGRESS, 1_796_000_000_000 + seq, "n", {"seq": seq, "text": text})
        for seq in range(first, last + 1)
    ]

"""Flows that the integration tests run."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from app.models.run import Run, RunStatus
from app.wiring import Services
from tests.servers import wait_until


def document(name: str, nodes: dict[str, dict[str, Any]]) -> bytes:
    """Return a FlowDSL document whose nodes follow one another."""
    names = list(nodes)
    edges = [{"from": a, "to": b, "delivery": {"mode": "direct"}} for a, b in pairwise(names)]
    flow = {"entrypoints": [names[0]], "nodes": nodes, "edges": edges}
    return json.dumps({"flowdsl": "1.0.0", "info": {"title": name, "version": "1"}, "flows": {name: flow}}).encode()


def node(ref: str, **settings: Any) -> dict[str, Any]:
    return {"operationId": ref, "kind": "transform", "x-action-ref": ref, "settings": settings}


def counting(key: str) -> bytes:
    """A flow that counts how often it ran; see :meth:`app.ports.Store.counter`."""
    return document(f"count-{key}", {"count": node("core/count", key=key), "log": node("core/log", message="done")})


def waiting(*seconds: float) -> bytes:
    """A flow of one ``core/delay`` after the other."""
    return document(f"wait-{len(seconds)}", {f"wait{n}": node("core/delay", seconds=s) for n, s in enumerate(seconds)})


def deploy(services: Services, name: str, raw: bytes, **weights_and_roles: tuple[int, list[str]]) -> None:
    """Import a document and deploy its flow; ``canary=(20, ["gpu-worker"])`` makes a variant."""
    result = services.catalog.import_document(raw, media_type="application/json", flow=None, publish=True)
    flow_id = result.flows[0].flow_id
    variants = [
        {"label": label, "flowId": flow_id, "weight": weight, "targetRoles": roles}
        for label, (weight, roles) in weights_and_roles.items()
    ]
    services.catalog.put_deployment(name, {"variants": variants})


def is_running(services: Services, run_id: str) -> bool:
    return services.runs.get(run_id).status is RunStatus.RUNNING


def ended(services: Services, run_id: str, *, seconds: float = 20) -> Run:
    """Wait for the end of a run and return it."""
    wait_until(lambda: services.runs.get(run_id).ended, seconds=seconds, what=f"run {run_id} has ended")
    return services.runs.get(run_id)

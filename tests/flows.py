"""Small flows for tests, and running them without servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any

from app.engine import execute
from app.errors import InvalidDocument
from app.flowdsl import Plan, compile_flow
from app.live.streams import MemoryStreams
from app.models.event import NewEvent
from app.nodes import Step, handler
from app.nodes.registry import HandlerRegistry
from app.nodes.testing import MemoryHost
from app.ports import Outcome
from app.store.memory import MemoryStore


def document(nodes: Mapping[str, Any], edges: list[dict[str, Any]] | None = None, **flow: Any) -> dict[str, Any]:
    """A document with one flow ``x``; ``components`` goes where it belongs, other keywords into the flow."""
    components = flow.pop("components", {})
    return {
        "flowdsl": "1.0.0",
        "info": {"title": "Test", "version": "1.0.0"},
        "flows": {"x": {"nodes": dict(nodes), "edges": edges or [], **flow}},
        "components": components,
    }


def node(ref: str, kind: str = "action", **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "x-action-ref": ref, **fields}


def edge(source: str, target: str, when: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"from": source, "to": target, **({} if when is None else {"when": when}), **fields}


def chain(*names: str) -> list[dict[str, Any]]:
    return [edge(source, target) for source, target in pairwise(names)]


def registry(**functions: Callable[[Step], Any]) -> HandlerRegistry:
    """Handlers ``t/<keyword>`` and the built-in ones."""
    from app.nodes import builtin

    module = ModuleType("handlers_of_a_test")
    for name, function in functions.items():

        def call(step: Step, function: Callable[[Step], Any] = function) -> Any:
            return function(step)

        setattr(module, name, handler(f"t/{name}")(call))
    return HandlerRegistry.load([module, builtin])


@dataclass
class Ran:
    """How a run went."""

    outcome: Outcome
    host: MemoryHost

    @property
    def events(self) -> list[NewEvent]:
        return self.host.events

    @property
    def story(self) -> list[str]:
        """Events as short words: ``+node`` started, ``=node`` completed, ``!node`` failed, ``-node`` skipped."""
        signs = {"node.started": "+", "node.completed": "=", "node.failed": "!", "node.skipped": "-"}
        return [f"{signs.get(event.type, event.type + ':')}{event.node or ''}" for event in self.events]

    @property
    def logs(self) -> list[str]:
        return [str((event.data or {}).get("message")) for event in self.events if event.type == "log"]


def run(
    source: dict[str, Any] | Plan,
    input: Any = None,
    handlers: HandlerRegistry | None = None,
    *,
    host: MemoryHost | None = None,
    flow: str = "x",
    **options: Any,
) -> Ran:
    plan = source if isinstance(source, Plan) else compile_flow(source, flow)
    host = host or MemoryHost()
    options = {
        "run_id": "run",
        "attempt": 1,
        "meta": {},
        "ledger": MemoryStore(),
        "token": "t1",
        "streams": MemoryStreams(),
    } | options
    outcome = execute(plan, input={} if input is None else input, handlers=handlers or registry(), host=host, **options)
    return Ran(outcome, host)


def faults(source: dict[str, Any], flow: str = "x") -> dict[str, str]:
    """Return what keeps a document from being imported, by place."""
    try:
        compile_flow(source, flow)
    except InvalidDocument as error:
        return {fault.at: fault.message for fault in error.faults}
    return {}


def lint(source: dict[str, Any], flow: str = "x") -> dict[str, str]:
    """Return a document's warnings by place, all handlers being known that can be."""
    plan = compile_flow(source, flow)
    known = frozenset(ref for node in plan.nodes for ref in node.candidates) | frozenset(
        ref for candidates in plan.needs for ref in candidates
    )
    return {fault.at: fault.message for fault in plan.warnings(known)}

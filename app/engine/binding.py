"""Which handler each node of a plan has in this process, and its settings, read once for all runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.engine.calling import Function
from app.engine.host import HandBack
from app.errors import Fault
from app.flowdsl.plan import Plan, PlanNode
from app.nodes.registry import HandlerRegistry


@dataclass(frozen=True, slots=True)
class Binding:
    """``function`` is ``None`` for a node that passes on what arrives."""

    function: Function | None = None
    settings: Any = None
    faults: tuple[Fault, ...] = ()
    """What is wrong with the settings, if the version was imported where its handler was not known."""
    gathers: bool = False


def bind(plan: Plan, handlers: HandlerRegistry) -> tuple[Binding, ...]:
    """Return a binding for each node of the plan.

    Raises:
        HandBack: a node needs a handler and none of its candidates is here.
    """
    bound: tuple[Binding, ...] | None = handlers.bound.get(plan)
    if bound is None:
        # Those of subworkflows and of core/map too: better to find out now than half-way.
        if any(handlers.find(candidates) is None for candidates in plan.needs):
            raise HandBack("missing_handler")
        bound = handlers.bound[plan] = tuple(_bind(node, handlers) for node in plan.nodes)
    return bound


def _bind(node: PlanNode, handlers: HandlerRegistry) -> Binding:
    found = handlers.find(node.candidates)
    if found is None:
        return Binding()
    settings, faults = found.read_settings(node.settings)
    return Binding(found.function, settings, tuple(faults), found.gathers)

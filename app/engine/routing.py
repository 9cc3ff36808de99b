"""Which edges an output follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.engine.calling import Failed
from app.flowdsl.plan import PlanEdge, PlanNode
from app.nodes.api import Code


@dataclass(slots=True)
class Followed:
    """Edges that are followed, in the document's order; those that are not, and why; packets that do not fit."""

    edges: list[PlanEdge] = field(default_factory=list)
    skipped: list[tuple[PlanEdge, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def route(node: PlanNode, input: Any, output: Any, meta: Mapping[str, Any], validation: str) -> Followed:
    """Decide by ``when``, ``else``, port and packet.

    Raises:
        Failed: ``validation`` is ``strict`` and the output does not fit the packet of an edge that it follows.
    """
    followed = Followed()
    reasons: dict[int, str] = {}
    port = _port(node, output)
    conditional_held = False
    for edge in node.edges:
        reason = _reason(edge, node, port, input, output, meta)
        if reason is not None:
            reasons[edge.index] = reason
        elif edge.when is not None:
            conditional_held = True
    for edge in node.edges:
        reason = reasons.get(edge.index)
        if reason is None and edge.otherwise and conditional_held:
            reason = "else: another edge's condition held"
        if reason is None:
            followed.edges.append(edge)
        else:
            followed.skipped.append((edge, reason))
    if validation != "off":
        _check_packets(followed, output, strict=validation == "strict")
    return followed


def _reason(
    edge: PlanEdge, node: PlanNode, port: str | None, input: Any, output: Any, meta: Mapping[str, Any]
) -> str | None:
    """Return why an edge is not followed, looking at it alone."""
    if node.ports and edge.source_port is not None and edge.source_port != port:
        return f"port: the output left by {port or 'no port'}"
    if edge.when is not None and not edge.when.holds(input, output, meta):
        return "when: the condition does not hold"
    if edge.by_packet and edge.packet is not None:
        mismatch = edge.packet.mismatch(output)
        return None if mismatch is None else f"packet: {mismatch}"
    return None


def _port(node: PlanNode, output: Any) -> str | None:
    """Return the port that an output leaves by: what its ``route`` or else its ``name`` says, if that is a port."""
    if node.ports and isinstance(output, dict):
        for key in ("route", "name"):
            if isinstance(value := output.get(key), str) and value in node.ports:
                return value
    return None


def _check_packets(followed: Followed, output: Any, *, strict: bool) -> None:
    for edge in followed.edges:
        if edge.packet is None or edge.by_packet:
            continue
        mismatch = edge.packet.mismatch(output)
        if mismatch is not None and strict:
            raise Failed(Code.VALIDATION, f"edge {edge.index}: {mismatch}")
        if mismatch is not None:
            followed.warnings.append(f"edge {edge.index}: {mismatch}")

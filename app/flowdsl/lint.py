"""What is odd about a flow as a whole, though it can run."""

from __future__ import annotations

from collections.abc import Sequence

from app.errors import Fault
from app.flowdsl.plan import Entry, PlanNode
from app.flowdsl.reading import escape


def lint_graph(at: str, nodes: Sequence[PlanNode], entries: Sequence[Entry]) -> list[Fault]:
    """Return warnings about the flow at ``at``: nodes that never run, no output, an ``else`` that is none."""
    reached = _reached(nodes, entries)
    warnings = [
        Fault.warning(
            f"{at}/nodes/{escape(node.name)}",
            "no entry leads to this node; it never runs",
            "lead an edge to it, or name it in entrypoints",
        )
        for node in nodes
        if entries and node.index not in reached
    ]
    if all(node.edges for node in nodes):
        message = "every node has an outgoing edge, so the output is null"
        warnings.append(Fault.warning(f"{at}/edges", message, "end one path"))
    for node in nodes:
        others = [edge for edge in node.edges if edge.otherwise]
        if others and not any(edge.when for edge in node.edges):
            message = "is 'else' beside no edge with a condition, so it is always followed"
            mend = "leave it out, or give another edge of the node a condition"
            warnings.append(Fault.warning(f"{at}/edges/{others[0].index}/when", message, mend))
    return warnings


def _reached(nodes: Sequence[PlanNode], entries: Sequence[Entry]) -> set[int]:
    reached: set[int] = set()
    ahead = [entry.node for entry in entries]
    while ahead:
        number = ahead.pop()
        if number not in reached:
            reached.add(number)
            ahead += [edge.target for edge in nodes[number].edges]
    return reached

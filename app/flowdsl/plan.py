"""A compiled flow: everything that an execution needs, worked out once. Immutable and free of any run's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.errors import Fault
from app.flowdsl.expressions import Expression, KeyExpression
from app.flowdsl.mends import Guesser
from app.flowdsl.packets import Packet
from app.flowdsl.retry import RetryPolicy


@dataclass(frozen=True, slots=True, eq=False)
class PlanEdge:
    """One edge. Its packets are executed by node number ``target``."""

    index: int
    """Its place in the flow's ``edges``, which packet ids and ``node.skipped`` name."""
    source: int
    target: int
    source_port: str | None = None
    """The output port it leaves by, where the node has several."""
    target_port: str | None = None
    when: Expression | None = None
    otherwise: bool = False
    """``when: "else"``: followed if no other conditional edge of its node is."""
    packet: Packet | None = None
    by_packet: bool = False
    """A bare edge beside edges with other packets: followed only for what is valid as its own."""
    tolerant: bool = False
    """``ephemeral``: what fails behind it does not fail the run."""
    journalled: bool = False
    """``checkpoint`` or ``durable``: the output is journalled before the edge is followed."""
    retry: RetryPolicy | None = None
    topic: str | None = None
    """``stream``: what its packets are published to before they go on."""
    unsupported: str | None = None
    """What it is delivered by, if that is nothing we have: a run that reaches the edge fails."""


@dataclass(frozen=True, slots=True, eq=False)
class Idempotency:
    """A node's ``idempotency``: for ``ttl_ms`` it is not executed again for packets with the same key."""

    key: KeyExpression
    ttl_ms: int


@dataclass(frozen=True, slots=True, eq=False)
class PlanNode:
    """One node. ``candidates`` are the refs of handlers that may execute it, best first."""

    index: int
    name: str
    at: str
    """Where it is written: a JSON pointer into the document, behind any ``$ref``."""
    kind: str | None
    candidates: tuple[str, ...]
    needs_handler: bool
    """False for nodes that pass on what arrives unless a worker has a handler for them."""
    settings: Mapping[str, Any]
    timeout_ms: int | None
    retry: RetryPolicy | None
    at_most_once: bool
    edges: tuple[PlanEdge, ...]
    incoming: tuple[PlanEdge, ...]
    ports: frozenset[str]
    """Names of its output ports if it has several, else empty."""
    child: Plan | None = None
    """The flow that a subworkflow node stands for."""
    idempotency: Idempotency | None = None

    @property
    def checkpoint(self) -> bool:
        """Whether what leaves it is journalled, whatever its edges say."""
        return self.kind == "checkpoint"


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A node that is given the run's input if ``filter`` holds for it."""

    node: int
    filters: tuple[Expression, ...] = ()
    """One of these must hold; none: always."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Plan:
    """A flow of a document, ready to execute; compare plans by identity and cache them by version."""

    flow_name: str
    title: str
    nodes: tuple[PlanNode, ...]
    edges: tuple[PlanEdge, ...]
    entries: tuple[Entry, ...]
    entry_packets: tuple[Packet, ...]
    """What the entrypoints say of the run's input; one of them should fit."""
    sinks: tuple[int, ...]
    needs: tuple[tuple[str, ...], ...]
    """For each node that needs a handler, the refs of which a worker must have at least one."""
    default_retry: RetryPolicy | None
    """The flow's ``defaults.retryPolicy``, which also says whether an attempt that ran out of time is repeated."""
    lint: tuple[Fault, ...]
    handled: tuple[tuple[str, tuple[str, ...]], ...]
    """The place and the candidate refs behind each of ``needs``, in that order."""
    journals: bool = False
    """Whether anything in it is to be durable before a run goes on."""

    def warnings(self, known_refs: frozenset[str]) -> list[Fault]:
        """Return what will not go as written, each with its place; ``known_refs`` are the handlers that exist now.

        Nothing here keeps the flow from being imported: a handler may come with a worker that starts later.
        """
        guess = Guesser().mend
        start = "start a worker that has one, by its NODE_MODULES or a package"
        missing = [
            Fault.warning(at, _unknown(candidates), guess(candidates[0], known_refs) or start)
            for at, candidates in self.handled
            if known_refs.isdisjoint(candidates)
        ]
        passing = [
            Fault.warning(node.at, f"{_unknown(node.candidates)}; the node passes on what arrives", start)
            for node in self.nodes
            if node.candidates and not node.needs_handler and known_refs.isdisjoint(node.candidates)
        ]
        return [*self.lint, *missing, *passing]


def _unknown(candidates: tuple[str, ...]) -> str:
    return f"no handler is known for {' or '.join(candidates)}"

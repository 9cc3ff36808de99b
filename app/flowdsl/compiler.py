"""From a document to a plan. Finds every fault before it gives up, each with its place."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from app.errors import Fault, InvalidDocument
from app.flowdsl.expressions import FILTER_ROOTS, ROOTS, Expression
from app.flowdsl.fields import KINDS, PASSING, FieldReader, called_flow, handler_candidates, output_ports
from app.flowdsl.lint import lint_graph
from app.flowdsl.packets import Packet
from app.flowdsl.plan import Entry, Plan, PlanEdge, PlanNode
from app.flowdsl.reading import escape
from app.flowdsl.retry import RetryPolicy
from app.models.names import check_ident
from app.nodes.registry import HandlerRegistry, load_handlers

VERSION: Final = "1.0.0"
MAX_NODES: Final = 1_000
MAX_EDGES: Final = 4_000
MAX_NESTED: Final = 20
"""Flows inside flows, by subworkflow nodes."""


def flow_names(document: Mapping[str, Any]) -> list[str]:
    """Return the names of the document's flows, in its order.

    Raises:
        InvalidDocument: it has no flows, or one whose name cannot be a flow's id.
    """
    flows = document.get("flows")
    if not isinstance(flows, dict) or not flows:
        raise InvalidDocument.of([Fault("/flows", "must be an object with at least one flow")])
    faults = []
    for name in flows:
        try:
            check_ident(name)
        except ValueError as error:
            faults.append(Fault(f"/flows/{escape(name)}", str(error)))
    if faults:
        raise InvalidDocument.of(faults)
    return list(flows)


def compile_flow(document: Mapping[str, Any], flow_name: str, *, handlers: HandlerRegistry | None = None) -> Plan:
    """Compile one flow of a document that :func:`app.flowdsl.read` has read.

    Settings are checked by the models of ``handlers`` (default: the built-in ones).

    Raises:
        InvalidDocument: with every fault that keeps the flow from ever running.
    """
    names = flow_names(document)
    reader = FieldReader(document)
    if flow_name not in names:
        raise InvalidDocument.of([Fault("/flows", f"has no flow {flow_name!r}", reader.guess(flow_name, names))])
    if document.get("flowdsl") != VERSION:
        reader.warn(
            "/flowdsl",
            f"is {document.get('flowdsl')!r}; the document is read as FlowDSL {VERSION}",
            f'write "{VERSION}"',
        )
    plan = _FlowCompiler(document, flow_name, reader, handlers or _builtin_handlers()).compile()
    if plan is None or reader.faults:
        raise InvalidDocument.of(reader.faults, reader.lint)
    return plan


@lru_cache(maxsize=1)
def _builtin_handlers() -> HandlerRegistry:
    return load_handlers(entry_points=False)


class _Defaults(NamedTuple):
    """What a flow says for all of its nodes. ``own`` is its ``retryPolicy`` alone."""

    timeout_ms: int | None
    retry: RetryPolicy | None
    own: RetryPolicy | None


def _journals(node: PlanNode) -> bool:
    return node.checkpoint or node.at_most_once or (node.child is not None and node.child.journals)


class _Ends(NamedTuple):
    """The nodes that an edge connects, by number, and the ports that it names."""

    source: int
    source_port: str | None
    target: int
    target_port: str | None


class _FlowCompiler:
    """Compiles one flow. What is wrong goes to the reader, so that one pass finds all of it."""

    def __init__(
        self,
        document: Mapping[str, Any],
        name: str,
        reader: FieldReader,
        handlers: HandlerRegistry,
        within: tuple[str, ...] = (),
        finished: dict[str, Plan | None] | None = None,
    ) -> None:
        """``within`` are the flows whose subworkflow nodes lead here, ``finished`` those compiled before."""
        self._document = document
        self._name = name
        self._at = f"/flows/{escape(name)}"
        self._read = reader
        self._handlers = handlers
        self._within = (*within, name)
        self._finished = {} if finished is None else finished
        self._flow: Any = document["flows"][name]
        self._handled: list[tuple[str, tuple[str, ...]]] = []
        self._numbers: dict[str, int] = {}

    def compile(self) -> Plan | None:
        if not isinstance(self._flow, dict):
            self._read.fault(self._at, "must be an object with 'nodes' and 'edges'")
            return None
        nodes, edges = self._flow.get("nodes"), self._flow.get("edges", [])
        if not isinstance(nodes, dict) or not nodes:
            self._read.fault(f"{self._at}/nodes", "must be an object with at least one node")
            return None
        if not isinstance(edges, list):
            self._read.fault(f"{self._at}/edges", "must be a list")
            return None
        if len(nodes) > MAX_NODES or len(edges) > MAX_EDGES:
            self._read.fault(self._at, f"may have {MAX_NODES:,} nodes and {MAX_EDGES:,} edges", "split it into flows")
            return None
        self._numbers = {name: number for number, name in enumerate(nodes)}
        defaults = self._defaults()
        plan_edges = self._edges(edges)
        plan_nodes = self._nodes(nodes, plan_edges, defaults)
        entries, packets = self._entries(plan_edges)
        sinks = tuple(node.index for node in plan_nodes if not node.edges)
        if not self._read.faults:  # else what is missing would be named once more for each of its consequences
            self._read.lint += lint_graph(self._at, plan_nodes, entries)
        handled = tuple(dict.fromkeys(self._handled))
        return Plan(
            flow_name=self._name,
            title=self._title(),
            nodes=plan_nodes,
            edges=plan_edges,
            entries=entries,
            entry_packets=packets,
            sinks=sinks,
            needs=tuple(candidates for _, candidates in handled),
            default_retry=defaults.own,
            lint=() if len(self._within) > 1 else tuple(dict.fromkeys(self._read.lint)),
            handled=handled,
            journals=any(edge.journalled for edge in plan_edges) or any(map(_journals, plan_nodes)),
        )

    # --- defaults ------------------------------------------------------------------------------------------------

    def _defaults(self) -> _Defaults:
        at = f"{self._at}/defaults"
        defaults = self._read.object(self._flow.get("defaults"), at)
        timeout, retry = self._read.execution(defaults.get("execution"), f"{at}/execution")
        own = self._read.policy(defaults.get("retryPolicy"), f"{at}/retryPolicy")
        return _Defaults(timeout, own or retry, own)

    # --- edges ---------------------------------------------------------------------------------------------------

    def _edges(self, edges: list[Any]) -> tuple[PlanEdge, ...]:
        raw = [edge if isinstance(edge, dict) else {} for edge in edges]
        ends = [self._ends(edge, f"{self._at}/edges/{index}") for index, edge in enumerate(edges)]
        packets = [self._edge_packet(edge, f"{self._at}/edges/{index}") for index, edge in enumerate(raw)]
        declared: dict[int, set[str]] = {}
        for end, packet in zip(ends, packets, strict=True):
            if end is not None and packet is not None:
                declared.setdefault(end.source, set()).add(packet.name)
        return tuple(
            self._edge(index, edge, end, packet, differs=len(declared.get(end.source, ())) > 1)
            for index, (edge, end, packet) in enumerate(zip(raw, ends, packets, strict=True))
            if end is not None
        )

    def _ends(self, edge: Any, at: str) -> _Ends | None:
        if not isinstance(edge, dict):
            self._read.fault(at, "must be an object with 'from' and 'to'")
            return None
        source, target = self._end(edge, "from", at), self._end(edge, "to", at)
        return None if source is None or target is None else _Ends(*source, *target)

    def _end(self, edge: dict[str, Any], side: str, at: str) -> tuple[int, str | None] | None:
        """Read ``node`` or ``node.port``; names of nodes may have dots."""
        text = edge.get(side)
        if not isinstance(text, str):
            self._read.fault(f"{at}/{side}", "must name a node", "for example 'fetch' or 'fetch.failed'")
            return None
        name, port = text, ""
        while name not in self._numbers and "." in name:
            name, _, last = name.rpartition(".")
            port = f"{last}.{port}" if port else last
        if name not in self._numbers:
            self._unknown_node(text, f"{at}/{side}")
            return None
        return self._numbers[name], port or None

    def _unknown_node(self, name: str, at: str) -> None:
        mend = self._read.guess(name, self._numbers)
        self._read.fault(at, f"names the node {name!r}, which the flow does not have", mend)

    def _edge_packet(self, edge: dict[str, Any], at: str) -> Packet | None:
        delivery = edge.get("delivery")
        if edge.get("packet") is None and isinstance(delivery, dict):
            return self._read.packet(delivery.get("packet"), f"{at}/delivery/packet")
        return self._read.packet(edge.get("packet"), f"{at}/packet")

    def _edge(self, index: int, edge: dict[str, Any], ends: _Ends, packet: Packet | None, *, differs: bool) -> PlanEdge:
        """``differs``: the edges that leave its node declare different packets."""
        at = f"{self._at}/edges/{index}"
        when = edge.get("when")
        bare = when is None or when == ""
        otherwise = isinstance(when, str) and when.strip() == "else"
        delivery = self._read.delivery(edge.get("delivery"), f"{at}/delivery")
        return PlanEdge(
            index=index,
            source=ends.source,
            target=ends.target,
            source_port=ends.source_port,
            target_port=ends.target_port,
            when=None if bare or otherwise else self._read.expression(when, f"{at}/when", ROOTS),
            otherwise=otherwise,
            packet=packet,
            by_packet=bare and differs and packet is not None,
            tolerant=delivery.mode == "ephemeral",
            journalled=delivery.mode in ("checkpoint", "durable"),
            retry=delivery.retry,
            topic=delivery.topic,
            unsupported=delivery.unsupported,
        )

    # --- nodes ---------------------------------------------------------------------------------------------------

    def _nodes(self, nodes: dict[str, Any], edges: tuple[PlanEdge, ...], defaults: _Defaults) -> tuple[PlanNode, ...]:
        outgoing: list[list[PlanEdge]] = [[] for _ in nodes]
        incoming: list[list[PlanEdge]] = [[] for _ in nodes]
        for edge in edges:
            outgoing[edge.source].append(edge)
            incoming[edge.target].append(edge)
        return tuple(
            self._node(number, name, raw, tuple(outgoing[number]), tuple(incoming[number]), defaults)
            for number, (name, raw) in enumerate(nodes.items())
        )

    def _node(
        self, number: int, name: str, raw: Any, edges: tuple[PlanEdge, ...], incoming: tuple[PlanEdge, ...],
        defaults: _Defaults,
    ) -> PlanNode:  # fmt: skip
        node, at = self._read.resolve(raw, f"{self._at}/nodes/{escape(name)}")
        if node is not None and not isinstance(node, dict):
            self._read.fault(at, "must be an object")
        node = node if isinstance(node, dict) else {"kind": "terminal"}
        kind = self._kind(node, at)
        settings = self._read.object(node.get("settings"), f"{at}/settings")
        timeout, retry = self._read.execution(node.get("execution"), f"{at}/execution")
        called = called_flow(settings) if kind == "subworkflow" else None
        child = None if called is None else self._child(called, f"{at}/settings/workflowRef")
        candidates = handler_candidates(node, kind) if called is None else ()
        needs_handler = called is None and kind not in PASSING
        if needs_handler:
            self._need(candidates, at)
        self._check_settings(candidates, settings, f"{at}/settings")
        at_most_once = self._read.flag(node, "x-atMostOnce", at)
        if at_most_once and (node.get("retryPolicy") is not None or (retry and retry.max_attempts > 1)):
            self._read.warn(
                f"{at}/x-atMostOnce", "a node that runs at most once is never tried again", "leave its retries out"
            )
        return PlanNode(
            index=number,
            name=name,
            at=at,
            kind=kind,
            candidates=candidates,
            needs_handler=needs_handler,
            settings=settings,
            timeout_ms=timeout or defaults.timeout_ms,
            retry=self._read.policy(node.get("retryPolicy"), f"{at}/retryPolicy") or retry or defaults.retry,
            at_most_once=at_most_once,
            edges=edges,
            incoming=incoming,
            ports=output_ports(node, edges),
            child=child,
            idempotency=self._read.idempotency(node.get("idempotency"), f"{at}/idempotency"),
        )

    def _kind(self, node: dict[str, Any], at: str) -> str | None:
        kind = node.get("kind")
        if kind is not None and not (isinstance(kind, str) and kind in KINDS):
            mend = self._read.guess(str(kind), KINDS) or f"write one of {', '.join(sorted(KINDS))}"
            self._read.warn(f"{at}/kind", f"is {kind!r}, which FlowDSL does not have; it runs like an action", mend)
            return None
        return kind

    def _need(self, candidates: tuple[str, ...], at: str) -> None:
        if candidates:
            self._handled.append((at, candidates))
        else:
            self._read.fault(at, "names no handler", "give it an x-action-ref, for example 'core/log'")

    def _check_settings(self, candidates: tuple[str, ...], settings: dict[str, Any], at: str) -> None:
        """Check them by the model of the handler, if it is known here; a handler may need others beside it."""
        found = self._handlers.find(candidates)
        if found is not None:
            parsed, faults = found.read_settings(settings, at)
            self._read.faults += faults
            for ref in getattr(parsed, "calls", ()):
                self._need((ref,), at)

    def _child(self, name: str, at: str) -> Plan | None:
        """Compile the flow that a subworkflow node calls."""
        if name not in self._document["flows"]:
            self._read.fault(at, f"the document has no flow {name!r}", self._read.guess(name, self._document["flows"]))
            return None
        if name in self._within:
            self._read.fault(at, f"leads back into itself: {' -> '.join((*self._within, name))}")
            return None
        if len(self._within) > MAX_NESTED:
            self._read.fault(at, f"is a flow inside more than {MAX_NESTED} others")
            return None
        if name not in self._finished:
            compiler = _FlowCompiler(self._document, name, self._read, self._handlers, self._within, self._finished)
            self._finished[name] = compiler.compile()
        child = self._finished[name]
        if child is not None:
            self._handled += child.handled
        return child

    def _title(self) -> str:
        info = self._document.get("info")
        titles = (
            self._flow.get("title"),
            self._flow.get("summary"),
            info.get("title") if isinstance(info, dict) else "",
        )
        return next((title for title in titles if isinstance(title, str) and title), self._name)[:200]

    # --- entries -------------------------------------------------------------------------------------------------

    def _entries(self, edges: tuple[PlanEdge, ...]) -> tuple[tuple[Entry, ...], tuple[Packet, ...]]:
        at = f"{self._at}/entrypoints"
        points = self._flow.get("entrypoints")
        if points is not None and not isinstance(points, list):
            self._read.fault(at, "must be a list of node names or of objects with 'message'")
            return (), ()
        entries: list[Entry] = []
        packets: list[Packet] = []
        filters: list[Expression | None] = []
        for index, point in enumerate(points or []):
            place = f"{at}/{index}"
            named, condition, packet = self._entrypoint(point, place)
            packets += [packet] if packet else []
            if named is None:
                filters.append(condition)
            elif named in self._numbers:
                entries.append(Entry(self._numbers[named], (condition,) if condition else ()))
            else:
                self._unknown_node(named, place)
        if filters or not points:
            reached = {edge.target for edge in edges}
            always = any(condition is None for condition in filters) or not filters
            allowed = () if always else tuple(condition for condition in filters if condition is not None)
            named_already = {entry.node for entry in entries}
            first = [number for number in self._numbers.values() if number not in reached | named_already]
            entries += [Entry(number, allowed) for number in first]
        if not entries:
            self._read.fault(at, "the flow has no entry: every node has an incoming edge", "name one here")
        return tuple(entries), tuple(packets)

    def _entrypoint(self, point: Any, at: str) -> tuple[str | None, Expression | None, Packet | None]:
        if isinstance(point, str):
            return point, None, None
        if not isinstance(point, dict):
            self._read.fault(at, "must be a node's name or an object with 'message'")
            return None, None, None
        named = point.get("node")
        if named is not None and not isinstance(named, str):
            self._read.fault(f"{at}/node", "must be a node's name")
            named = None
        condition = point.get("filter")
        bare = condition is None or condition == ""
        compiled = None if bare else self._read.expression(condition, f"{at}/filter", FILTER_ROOTS)
        message = point.get("message")
        return named, compiled, self._read.packet(message, f"{at}/message")

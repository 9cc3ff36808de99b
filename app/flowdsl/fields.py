"""Reading the fields of a document one by one, so that a wrong one is named and does not hide the next."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.errors import Fault
from app.flowdsl.expressions import Expression, compile_expression, compile_key
from app.flowdsl.mends import Guesser
from app.flowdsl.packets import Packet, PacketReader
from app.flowdsl.plan import Idempotency, PlanEdge
from app.flowdsl.references import BadReference, References
from app.flowdsl.retry import RetryPolicy, read_policy

MODES: Final = ("direct", "ephemeral", "checkpoint", "durable", "stream")
CARRIERS: Final = (None, "redis", "memory")
"""What may carry an ephemeral or stream edge here. Others (kafka, nats, rabbitmq) are not spoken."""

PASSING: Final = frozenset({"source", "terminal", "checkpoint"})
"""Kinds of nodes that pass on what arrives and so need no handler."""

KINDS: Final = PASSING | {"transform", "router", "llm", "action", "publish", "integration", "subworkflow"}

_TOPIC = re.compile(r"[A-Za-z0-9._:-]{1,200}")

MAX_TIMEOUT_MS: Final = 24 * 3_600_000
MAX_RETRIES: Final = 99
MAX_TTL_S: Final = 366 * 86_400
DEFAULT_TTL_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class Delivery:
    """An edge's ``delivery``."""

    mode: str
    retry: RetryPolicy | None
    unsupported: str | None
    """Its carrier, if that is none of ours."""
    topic: str | None = None


class FieldReader:
    """Reads fields of one document. ``faults`` keep a flow from ever running; ``lint`` is the rest."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.faults: list[Fault] = []
        self.lint: list[Fault] = []
        self.guess = Guesser().mend
        self._references = References(document)
        self._packets = PacketReader(document)
        self._known_packets: dict[str, Packet | None] = {}

    def fault(self, at: str, message: str, mend: str | None = None) -> None:
        self.faults.append(Fault(at, message, mend))

    def warn(self, at: str, message: str, mend: str | None = None) -> None:
        self.lint.append(Fault.warning(at, message, mend))

    def resolve(self, value: Any, at: str) -> tuple[Any, str]:
        """Follow a ``$ref``; return the value and the place where it really stands."""
        try:
            return self._references.resolve(value, at)
        except BadReference as bad:
            self.faults.append(bad.fault)
            return None, at

    def expression(self, text: Any, at: str, roots: tuple[str, ...]) -> Expression | None:
        if not isinstance(text, str):
            self.fault(at, "must be a condition as text", 'for example "output.score > 0.7"')
            return None
        try:
            return compile_expression(text, roots=roots)
        except ValueError as error:
            self.fault(at, str(error))
            return None

    def packet(self, value: Any, at: str) -> Packet | None:
        """Read what an edge or entrypoint says of its packet: a ``$ref``, a name, or a schema in place."""
        if value is None:
            return None
        try:
            found = self._references.packet(value, at)
        except BadReference as bad:
            self.faults.append(bad.fault)
            return None
        if isinstance(found, Fault):
            self.lint.append(found)
            return None
        name, schema, pointer = found
        if pointer not in self._known_packets:
            try:
                self._known_packets[pointer] = self._packets.read(name, schema, pointer)
            except ValueError as error:
                self.warn(pointer, f"{error}; its packets are not checked")
                self._known_packets[pointer] = None
        return self._known_packets[pointer]

    def object(self, value: Any, at: str) -> dict[str, Any]:
        if value is None or isinstance(value, dict):
            return value or {}
        self.warn(at, "must be an object; it is not used")
        return {}

    def whole(self, where: Mapping[str, Any], name: str, at: str, least: int, most: int) -> int | None:
        value = where.get(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and least <= value <= most):
            return value
        self.warn(f"{at}/{name}", f"must be a whole number from {least} to {most:,}; it is not used")
        return None

    def flag(self, where: Mapping[str, Any], name: str, at: str) -> bool:
        value = where.get(name, False)
        if not isinstance(value, bool):
            self.warn(f"{at}/{name}", "must be true or false; false is used")
        return value is True

    def execution(self, value: Any, at: str) -> tuple[int | None, RetryPolicy | None]:
        """Read ``execution``: the time limit in milliseconds and what ``maxRetries`` allows."""
        execution = self.object(value, at)
        timeout = self.whole(execution, "timeoutMs", at, 1, MAX_TIMEOUT_MS)
        retries = self.whole(execution, "maxRetries", at, 0, MAX_RETRIES)
        self.whole(execution, "concurrency", at, 1, 1_000_000)
        return timeout, None if retries is None else RetryPolicy(max_attempts=retries + 1)

    def policy(self, value: Any, at: str) -> RetryPolicy | None:
        if value is None:
            return None
        value, at = self.resolve(value, at)
        if not isinstance(value, dict):
            self.warn(at, "must be an object; it is not used")
            return None
        policy, warnings = read_policy(value, at)
        self.lint += warnings
        return policy

    def idempotency(self, value: Any, at: str) -> Idempotency | None:
        """Read a node's ``idempotency``: a key that cannot be read would let a side effect happen again: a fault."""
        given = self.object(value, at)
        text = given.get("keyExpression")
        if text is None or given.get("enabled", True) is False:
            return None
        if not isinstance(text, str):
            self.fault(f"{at}/keyExpression", "must be an expression as text", 'for example "input.orderId"')
            return None
        ttl = self.whole(given, "ttlSeconds", at, 1, MAX_TTL_S)
        try:
            return Idempotency(compile_key(text), (ttl or DEFAULT_TTL_S) * 1000)
        except ValueError as error:
            self.fault(f"{at}/keyExpression", str(error))
            return None

    def delivery(self, value: Any, at: str) -> Delivery:
        delivery = self.object(value, at)
        mode = delivery.get("mode", "direct")
        if mode not in MODES:
            self.warn(f"{at}/mode", f"must be one of {', '.join(MODES)}; direct is used")
            mode = "direct"
        retry = self.policy(delivery.get("retryPolicy"), f"{at}/retryPolicy")
        unsupported = self._unsupported(delivery, mode, at)
        topic = self._topic(delivery, f"{at}/stream") if mode == "stream" and unsupported is None else None
        return Delivery(mode, retry, unsupported, topic)

    def _topic(self, delivery: dict[str, Any], at: str) -> str | None:
        topic = self.object(delivery.get("stream"), at).get("topic")
        if isinstance(topic, str) and _TOPIC.fullmatch(topic):
            return topic
        message = "has no topic; the packet goes on inside the run and is published nowhere"
        self.warn(f"{at}/topic", message, "name one of letters, digits, '.', '_', ':' and '-', at most 200")
        return None

    def _unsupported(self, delivery: dict[str, Any], mode: str, at: str) -> str | None:
        if mode == "stream":
            carrier, place = self.object(delivery.get("stream"), f"{at}/stream").get("bus"), f"{at}/stream/bus"
        elif mode == "ephemeral":
            carrier, place = delivery.get("backend"), f"{at}/backend"
        else:
            return None
        if carrier not in CARRIERS:
            self.warn(place, f"delivery by {carrier} is not supported: a run that reaches this edge fails", "use redis")
            return str(carrier)[:64]
        return None


def called_flow(settings: Mapping[str, Any]) -> str | None:
    """Return the name of the flow that ``workflowRef`` names, if it is one of the same document."""
    ref = settings.get("workflowRef")
    if not isinstance(ref, str) or not ref.startswith("#/flows/"):
        return None
    return ref.removeprefix("#/flows/").replace("~1", "/").replace("~0", "~")


def handler_candidates(node: Mapping[str, Any], kind: str | None) -> tuple[str, ...]:
    """Return the refs that may name a node's handler, best first.

    A source or terminal has a handler only if one is named on purpose; a checkpoint has none.
    """
    runtime, ui = node.get("runtime"), node.get("x-ui")
    named = [node.get("x-action-ref"), runtime.get("handler") if isinstance(runtime, dict) else None]
    if kind == "checkpoint":
        return ()
    if kind not in PASSING:
        named += [ui.get("registryId") if isinstance(ui, dict) else None, node.get("operationId")]
    return tuple(dict.fromkeys(ref for ref in named if isinstance(ref, str) and ref))


def output_ports(node: Mapping[str, Any], edges: tuple[PlanEdge, ...]) -> frozenset[str]:
    """Return the names of a node's output ports if it has several."""
    declared = node.get("outputs")
    if isinstance(declared, list):
        names = {port["name"] for port in declared if isinstance(port, dict) and isinstance(port.get("name"), str)}
    else:
        names = set(declared) if isinstance(declared, dict) else set()
    names |= {edge.source_port for edge in edges if edge.source_port is not None}
    return frozenset(names) if len(names) > 1 else frozenset()

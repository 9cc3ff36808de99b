"""Executing a plan: one packet at a time, first in, first out, so that the same answers give the same run."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from app.engine.binding import Binding, bind
from app.engine.calling import Failed, call, checked
from app.engine.host import Cancelled, Host
from app.engine.routing import Followed, route
from app.engine.world import RunWorld, Secrets
from app.flowdsl.plan import Plan, PlanEdge, PlanNode
from app.flowdsl.reading import escape
from app.models.event import LOG, NODE_COMPLETED, NODE_FAILED, NODE_SKIPPED, NODE_STARTED, NewEvent
from app.models.run import RunError, RunStatus
from app.nodes.api import Code
from app.nodes.registry import HandlerRegistry
from app.nodes.step import Step
from app.ports import Outcome

MAX_STEPS: Final = 1_000
MAX_OUTPUT_BYTES: Final = 4_000_000
PREVIEW: Final = 1_000


def execute(
    plan: Plan,
    *,
    run_id: str,
    attempt: int,
    input: Any,
    meta: Mapping[str, Any],
    handlers: HandlerRegistry,
    host: Host,
    validation: str = "warn",
    max_steps: int = MAX_STEPS,
    max_output_bytes: int = MAX_OUTPUT_BYTES,
    secrets: Secrets | None = None,
) -> Outcome:
    """Execute one attempt of a run to its end and return how it ended. No handler's exception gets out.

    ``validation`` is ``off``, ``warn`` or ``strict``: what becomes of a packet that does not fit its edge.
    ``max_output_bytes`` bounds what events and the outcome show of an output, not what goes from node to node.

    Raises:
        Interrupted: what ``host.check`` raised, except for :class:`Cancelled`, which is an outcome.
        HandBack: this worker lacks a handler that the plan needs.
    """
    run = _Execution(run_id, attempt, meta, handlers, host, validation, max_steps, max_output_bytes, secrets)
    try:
        return Outcome(RunStatus.COMPLETED, output=run.shown(run.flow(plan, _Data(input), root="", path="")))
    except NodeFailed as failed:
        return Outcome(RunStatus.FAILED, error=failed.error)
    except Cancelled:
        return Outcome(RunStatus.CANCELLED)


class NodeFailed(Exception):
    """A failure that ends the run, or its ephemeral branch unless it is ``final``."""

    def __init__(self, error: RunError, *, final: bool = False) -> None:
        super().__init__(error.message)
        self.error = error
        self.final = final


class _Data:
    """A JSON value that nobody else holds, and its text, from which its size and its copies are made."""

    __slots__ = ("text", "value")

    def __init__(self, value: Any) -> None:
        self.text = orjson.dumps(value)
        self.value = orjson.loads(self.text)

    def copy(self) -> Any:
        return orjson.loads(self.text)


@dataclass(frozen=True, slots=True)
class _Packet:
    """Data on its way into a node. Its id is ``parent/edge/ordinal``; the run's input has the entry's name."""

    id: str
    node: int
    data: _Data
    edge: PlanEdge | None = None
    tolerant: bool = False


@dataclass(slots=True)
class _Flow:
    """A plan under way: the run's own, or that of one call of a subworkflow node."""

    plan: Plan
    bindings: tuple[Binding, ...]
    path: str
    """What the names of its nodes begin with in events."""
    queue: deque[_Packet]
    results: dict[int, _Data]
    """The last output of each sink."""
    waiting: dict[int, dict[int, deque[_Packet]]]
    """Packets before nodes that gather, by node and edge (-1: the run's input)."""
    tolerated: RunError | None = None


class _Execution:
    """One attempt of a run."""

    def __init__(
        self, run_id: str, attempt: int, meta: Mapping[str, Any], handlers: HandlerRegistry, host: Host,
        validation: str, max_steps: int, max_output_bytes: int, secrets: Secrets | None,
    ) -> None:  # fmt: skip
        self.run_id = run_id
        self._attempt = attempt
        self._meta = meta
        self._handlers = handlers
        self._host = host
        self._validation = validation
        self._steps_left = self._max_steps = max_steps
        self._max_output_bytes = max_output_bytes
        self._world = RunWorld(host, meta, handlers, secrets)

    # --- flows ---------------------------------------------------------------------------------------------------

    def flow(self, plan: Plan, data: _Data, *, root: str, path: str) -> _Data:
        """Execute a flow with one input; return its output. ``root`` begins the ids of its packets."""
        flow = _Flow(plan, bind(plan, self._handlers), path, deque(), {}, {})
        self._check_input(flow, data.value)
        for entry in plan.entries:
            if not entry.filters or any(condition.admits(data.value, self._meta) for condition in entry.filters):
                flow.queue.append(_Packet(root + escape(plan.nodes[entry.node].name), entry.node, data))
        if not flow.queue:
            self._log("warning", "no entrypoint's filter holds for the input; nothing was executed")
        while flow.queue:
            packet = flow.queue.popleft()
            try:
                self._visit(flow, packet)
            except NodeFailed as failed:
                if failed.final or not packet.tolerant:
                    raise
                flow.tolerated = failed.error
        self._log_waiting(flow)
        return self._output(flow)

    def _check_input(self, flow: _Flow, value: Any) -> None:
        if self._validation == "off" or not flow.plan.entry_packets:
            return
        mismatches = [packet.mismatch(value) for packet in flow.plan.entry_packets]
        if all(mismatches):
            message = f"the input fits no entrypoint: {'; '.join(text for text in mismatches if text)}"
            if self._validation == "strict":
                raise NodeFailed(RunError(Code.VALIDATION, message, self._attempt))
            self._log("warning", message)

    def _output(self, flow: _Flow) -> _Data:
        """Return the output: that of the only sink, or an object of all that were reached."""
        if not flow.results and flow.tolerated is not None:
            error = flow.tolerated
            message = f"nothing was reached, because {error.node} failed: {error.message}"
            raise NodeFailed(RunError("no_output", message, self._attempt, error.node))
        sinks = flow.plan.sinks
        if len(sinks) == 1 and flow.results:
            return flow.results[sinks[0]]
        reached = {flow.plan.nodes[sink].name: flow.results[sink].value for sink in sinks if sink in flow.results}
        return _Data(reached or None)

    # --- packets -------------------------------------------------------------------------------------------------

    def _visit(self, flow: _Flow, packet: _Packet) -> None:
        """Take a packet through its node and put what leaves it into the queue."""
        node, binding = flow.plan.nodes[packet.node], flow.bindings[packet.node]
        if binding.gathers:
            gathered = self._gather(flow, node, packet)
            if gathered is None:
                return
            packet = gathered
        self._host.check()
        self._steps_left -= 1
        if self._steps_left < 0:
            message = f"more than {self._max_steps} nodes were executed; is there a cycle without an end?"
            raise NodeFailed(RunError("max_steps", message, self._attempt, flow.path + node.name), final=True)
        # An output that the journal holds for packet.id is to be taken here, instead of executing the node.
        output, followed = self._execute_node(flow, node, binding, packet)
        if not node.edges:
            flow.results[node.index] = output
        for edge in followed.edges:
            if edge.unsupported is not None:
                self._fail_unsupported(flow, edge)
            # Before an edge with `journalled` is followed, the output is to be written to the journal here.
            tolerant = packet.tolerant or edge.tolerant
            flow.queue.append(_Packet(f"{packet.id}/{edge.index}/0", edge.target, output, edge, tolerant))

    def _execute_node(self, flow: _Flow, node: PlanNode, binding: Binding, packet: _Packet) -> tuple[_Data, Followed]:
        """Execute a node, again after a failure while its policy allows; return its output and where it goes."""
        name = flow.path + node.name
        policy = (packet.edge.retry if packet.edge is not None else None) or node.retry
        tries = 0
        while True:
            tries += 1
            self._world.emit(NewEvent(NODE_STARTED, name))
            try:
                output = self._output_of(node, binding, packet, name)
                followed = route(node, packet.data.value, output.value, self._meta, self._validation)
            except (Failed, NodeFailed) as failed:
                error, final = self._error(failed, name)
                if final or policy is None or not policy.allows(error.code, tries):
                    self._world.emit(NewEvent(NODE_FAILED, name, {"error": error.to_wire()}))
                    raise NodeFailed(error, final=final) from failed
                delay_ms = policy.delay_ms(tries, self._host.random())
                self._world.emit(NewEvent(NODE_FAILED, name, {"error": error.to_wire(), "inMs": delay_ms}))
                self._pause(delay_ms / 1000)
                continue
            self._world.emit(NewEvent(NODE_COMPLETED, name, {"output": self.shown(output)}))
            self._tell(flow, followed)
            return output, followed

    def _output_of(self, node: PlanNode, binding: Binding, packet: _Packet, name: str) -> _Data:
        if node.child is not None:
            return self.flow(node.child, packet.data, root=f"{packet.id}/flow/", path=f"{name}/")
        if binding.function is None:
            return packet.data
        if binding.faults:
            raise Failed(Code.VALIDATION, f"settings {'; '.join(map(str, binding.faults))}")
        step = Step(
            # A copy of its own: what a handler does to its input must not reach other branches.
            input=packet.data.copy(),
            settings=binding.settings,
            meta=self._meta,
            node=name,
            key=f"{self.run_id}:{packet.id}",
            world=self._world,
            deadline=None if node.timeout_ms is None else self._host.now() + node.timeout_ms / 1000,
            port=None if packet.edge is None else packet.edge.target_port,
        )
        return _Data(checked(call(binding.function, step)))

    def _gather(self, flow: _Flow, node: PlanNode, packet: _Packet) -> _Packet | None:
        """Keep a packet until each incoming edge has brought one; then return all of them as one."""
        lanes = flow.waiting.setdefault(node.index, {edge.index: deque() for edge in node.incoming})
        lanes.setdefault(-1 if packet.edge is None else packet.edge.index, deque()).append(packet)
        if not all(lanes.values()):
            return None
        parts = [lane.popleft() for lane in lanes.values()]
        names = [part.edge and flow.plan.nodes[part.edge.source].name for part in parts]
        value = {name or "input": part.data.value for name, part in zip(names, parts, strict=True)}
        return _Packet(packet.id, packet.node, _Data(value), packet.edge, all(part.tolerant for part in parts))

    # --- telling -------------------------------------------------------------------------------------------------

    def shown(self, output: _Data) -> Any:
        """Return an output as events and outcomes show it: cut, with a note, where it is too large."""
        text = output.text
        if len(text) <= self._max_output_bytes:
            return output.value
        note = f"cut: {len(text):,} bytes are more than {self._max_output_bytes:,}"
        return {"truncated": True, "bytes": len(text), "note": note, "preview": text[:PREVIEW].decode(errors="ignore")}

    def _tell(self, flow: _Flow, followed: Followed) -> None:
        for warning in followed.warnings:
            self._log("warning", warning)
        for edge, reason in followed.skipped:
            target = flow.path + flow.plan.nodes[edge.target].name
            self._world.emit(NewEvent(NODE_SKIPPED, target, {"edge": edge.index, "reason": reason}))

    def _log(self, level: str, message: str) -> None:
        self._world.emit(NewEvent(LOG, data={"level": level, "message": message}))

    def _log_waiting(self, flow: _Flow) -> None:
        for number, lanes in flow.waiting.items():
            if any(lanes.values()):
                missing = [flow.plan.edges[edge].source for edge, lane in lanes.items() if edge >= 0 and not lane]
                names = ", ".join(flow.plan.nodes[source].name for source in missing)
                self._log("warning", f"{flow.path}{flow.plan.nodes[number].name} was still waiting for {names}")

    def _fail_unsupported(self, flow: _Flow, edge: PlanEdge) -> None:
        name = flow.path + flow.plan.nodes[edge.target].name
        message = f"edge {edge.index} is delivered by {edge.unsupported}, which Rolecall does not speak"
        error = RunError("unsupported_delivery", message, self._attempt, name)
        self._world.emit(NewEvent(NODE_FAILED, name, {"error": error.to_wire()}))
        raise NodeFailed(error, final=True)

    def _error(self, failed: Failed | NodeFailed, name: str) -> tuple[RunError, bool]:
        """Return a failure as runs show it, that of a node of a subworkflow as it is, and whether it is final."""
        if isinstance(failed, NodeFailed):
            return failed.error, failed.final
        return RunError(failed.code, failed.message, self._attempt, name), False

    def _pause(self, seconds: float) -> None:
        if seconds > 0:
            self._host.sleep(seconds)
        self._host.check()

"""Executing a plan: one packet at a time, first in, first out, so that the same answers give the same run."""

# Long because: one packet's way through the engine is read in one piece.
from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from app.engine.binding import Binding, bind
from app.engine.calling import Failed, call, checked
from app.engine.effects import Effects
from app.engine.host import Cancelled, Host, Ledger
from app.engine.journal import PASSED, Entry, Journal, check_size
from app.engine.routing import Followed, route
from app.engine.world import RunWorld, Secrets
from app.flowdsl.plan import Plan, PlanEdge, PlanNode
from app.flowdsl.reading import escape
from app.models.event import LOG, NODE_COMPLETED, NODE_FAILED, NODE_SKIPPED, NODE_STARTED, NewEvent
from app.models.run import RunError, RunStatus
from app.nodes.api import Code
from app.nodes.registry import HandlerRegistry
from app.nodes.step import Step
from app.ports import Outcome, Streams

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
    ledger: Ledger,
    token: str,
    streams: Streams | None = None,
    validation: str = "warn",
    max_steps: int = MAX_STEPS,
    max_output_bytes: int = MAX_OUTPUT_BYTES,
    secrets: Secrets | None = None,
) -> Outcome:
    """Execute one attempt of a run to its end and return how it ended. No handler's exception gets out.

    ``token`` is that of the attempt's lease, by which the journal knows its writers. ``validation`` is ``off``,
    ``warn`` or ``strict``: what becomes of a packet that does not fit its edge.
    ``max_output_bytes`` bounds what events and the outcome show of an output, not what goes from node to node.

    Raises:
        Interrupted: what ``host.check`` raised, except for :class:`Cancelled`, which is an outcome.
        HandBack: this worker lacks a handler that the plan needs, or the ledger stays away.
        Fenced: a later attempt has written to the journal.
    """
    journal = Journal(ledger, host, run_id=run_id, attempt=attempt, writer=token) if plan.journals else None
    world = RunWorld(host, meta, handlers, secrets)
    effects = Effects(ledger, host, streams)
    run = _Execution(
        run_id, attempt, meta, handlers, host, world, journal, effects, validation, max_steps, max_output_bytes
    )
    try:
        if journal is not None:
            journal.open()
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
        self._set(orjson.dumps(value))

    @classmethod
    def of_text(cls, text: bytes) -> _Data:
        data = cls.__new__(cls)
        data._set(text)
        return data

    def _set(self, text: bytes) -> None:
        self.text = text
        self.value = orjson.loads(text)

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
    deadline: float | None = None
    """When the time is up of the subworkflow node that it belongs to."""
    tolerated: RunError | None = None


class _Execution:
    """One attempt of a run."""

    def __init__(
        self, run_id: str, attempt: int, meta: Mapping[str, Any], handlers: HandlerRegistry, host: Host,
        world: RunWorld, journal: Journal | None, effects: Effects,
        validation: str, max_steps: int, max_output_bytes: int,
    ) -> None:  # fmt: skip
        self.run_id = run_id
        self._attempt = attempt
        self._meta = meta
        self._handlers = handlers
        self._host = host
        self._validation = validation
        self._steps_left = self._max_steps = max_steps
        self._max_output_bytes = max_output_bytes
        self._world = world
        self._journal = journal
        self._effects = effects

    # --- flows ---------------------------------------------------------------------------------------------------

    def flow(self, plan: Plan, data: _Data, *, root: str, path: str, deadline: float | None = None) -> _Data:
        """Execute a flow with one input; return its output. ``root`` begins the ids of its packets."""
        flow = _Flow(plan, bind(plan, self._handlers), path, deque(), {}, {}, deadline)
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
        self._world.check()
        self._steps_left -= 1
        if self._steps_left < 0:
            message = f"more than {self._max_steps} nodes were executed; is there a cycle without an end?"
            raise NodeFailed(RunError("max_steps", message, self._attempt, flow.path + node.name), final=True)
        if self._overdue(flow):
            message = "the subworkflow did not end within its timeoutMs"
            raise NodeFailed(RunError(Code.TIMEOUT, message, self._attempt, flow.path.removesuffix("/")))
        entry = None if self._journal is None else self._journal.find(packet.id)
        if entry is None:
            output, followed = self._execute_node(flow, node, binding, packet)
        else:
            output, followed = self._replay(flow, node, packet, entry)
        if not node.edges:
            flow.results[node.index] = output
        for edge in followed.edges:
            if edge.unsupported is not None or (edge.topic is not None and not self._effects.streaming):
                self._fail_unsupported(flow, edge)
            if edge.topic is not None:
                self._publish(flow, node, edge, packet, output)
            tolerant = packet.tolerant or edge.tolerant
            flow.queue.append(_Packet(f"{packet.id}/{edge.index}/0", edge.target, output, edge, tolerant))

    def _execute_node(self, flow: _Flow, node: PlanNode, binding: Binding, packet: _Packet) -> tuple[_Data, Followed]:
        """Execute a node, again after a failure while its policy allows; return its output and where it goes."""
        name = flow.path + node.name
        policy = (packet.edge.retry if packet.edge is not None else None) or node.retry
        if node.at_most_once:
            policy = None
            if self._journal is not None:
                self._journal.start(packet.id)
        tries = 0
        while True:
            tries += 1
            self._world.emit(NewEvent(NODE_STARTED, name))
            try:
                output, mark = self._output_of(flow, node, binding, packet, name)
                followed = route(node, packet.data.value, output.value, self._meta, self._validation)
                self._note_output(node, packet, output, followed)
            except (Failed, NodeFailed) as failed:
                error, final = self._error(failed, name)
                delay_ms = 0 if policy is None else policy.delay_ms(tries, self._host.random())
                late = self._overdue(flow, after_s=delay_ms / 1000)
                if final or policy is None or late or not policy.allows(error.code, tries):
                    self._world.emit(NewEvent(NODE_FAILED, name, {"error": error.to_wire()}))
                    self._note_failure(node, packet, error)
                    raise NodeFailed(error, final=final) from failed
                self._forget_inside(packet)
                self._world.emit(NewEvent(NODE_FAILED, name, {"error": error.to_wire(), "inMs": delay_ms}))
                self._pause(delay_ms / 1000)
                continue
            self._world.emit(NewEvent(NODE_COMPLETED, name, {"output": self.shown(output)} | mark))
            self._tell(flow, followed)
            return output, followed

    def _output_of(
        self, flow: _Flow, node: PlanNode, binding: Binding, packet: _Packet, name: str
    ) -> tuple[_Data, dict[str, Any]]:
        """Return a node's output, and what its event says beside it."""
        if node.idempotency is None:
            return self._fresh_output(flow, node, binding, packet, name), {}
        key = node.idempotency.key.key(packet.data.value, self._meta)
        if key is None:
            self._log("warning", f"{name}: the idempotency key has no value for this packet; it is executed without")
            return self._fresh_output(flow, node, binding, packet, name), {}
        text, reused = self._effects.once(
            (flow.plan.flow_name, node.name, key),
            lambda: self._fresh_output(flow, node, binding, packet, name).text,
            holder=f"{self.run_id}:{packet.id}",
            ttl_ms=node.idempotency.ttl_ms,
            timeout_ms=node.timeout_ms,
            deadline=flow.deadline,
        )
        return _Data.of_text(text), {"reused": True} if reused else {}

    def _fresh_output(self, flow: _Flow, node: PlanNode, binding: Binding, packet: _Packet, name: str) -> _Data:
        deadline = flow.deadline
        if node.timeout_ms is not None:
            own = self._host.now() + node.timeout_ms / 1000
            deadline = own if deadline is None else min(own, deadline)
        if node.child is not None:
            with self._world.steady(node.at_most_once):
                return self.flow(node.child, packet.data, root=f"{packet.id}/flow/", path=f"{name}/", deadline=deadline)
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
            deadline=deadline,
            port=None if packet.edge is None else packet.edge.target_port,
        )
        with self._world.steady(node.at_most_once):
            output = checked(call(binding.function, step))
        return _Data.of_text(self._world.redacted(orjson.dumps(output)))

    # --- the journal ---------------------------------------------------------------------------------------------

    def _replay(self, flow: _Flow, node: PlanNode, packet: _Packet, entry: Entry) -> tuple[_Data, Followed]:
        """Take from the journal what an earlier attempt made of a packet."""
        name = flow.path + node.name
        if "output" not in entry and "passed" not in entry:
            error, mark = self._failure_of(entry, name)
            self._world.emit(NewEvent(NODE_FAILED, name, {"error": error.to_wire()} | mark))
            raise NodeFailed(error)
        output = packet.data if "passed" in entry else _Data(entry["output"])
        try:
            followed = route(node, packet.data.value, output.value, self._meta, self._validation)
        except Failed as failed:
            raise NodeFailed(self._error(failed, name)[0]) from failed
        self._world.emit(NewEvent(NODE_COMPLETED, name, {"output": self.shown(output), "replayed": True}))
        return output, followed

    def _failure_of(self, entry: Entry, name: str) -> tuple[RunError, dict[str, Any]]:
        if "error" in entry:
            return RunError.from_wire(entry["error"]), {"replayed": True}
        message = (
            "an attempt was lost in the middle of this node, which may run only once; look whether it did its work"
        )
        return RunError("outcome_unknown", message, self._attempt, name), {}

    def _note_output(self, node: PlanNode, packet: _Packet, output: _Data, followed: Followed) -> None:
        """Have the journal remember an output, and write it where the run may not go on before that."""
        if self._journal is None:
            return
        saved = node.at_most_once or node.checkpoint or any(edge.journalled for edge in followed.edges)
        passed = output is packet.data
        if saved and not passed:
            check_size(output.text)
        self._forget_inside(packet)
        self._journal.note(packet.id, PASSED if passed else None, output=output.text)
        if saved:
            self._journal.save()

    def _note_failure(self, node: PlanNode, packet: _Packet, error: RunError) -> None:
        """Have the journal remember a failure that the run outlives, or that must not be tried again."""
        self._forget_inside(packet)
        if self._journal is not None and (packet.tolerant or node.at_most_once):
            self._journal.note(packet.id, {"error": error.to_wire()})
            if node.at_most_once:
                self._journal.save()

    def _forget_inside(self, packet: _Packet) -> None:
        if self._journal is not None:
            self._journal.forget(f"{packet.id}/flow/")

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

    def _publish(self, flow: _Flow, node: PlanNode, edge: PlanEdge, packet: _Packet, output: _Data) -> None:
        message = {
            "id": f"{self.run_id}:{packet.id}/{edge.index}/0",
            "runId": self.run_id,
            "flowId": flow.plan.flow_name,
            "node": flow.path + node.name,
            "packet": output.value,
        }
        self._effects.publish(str(edge.topic), message)

    def _fail_unsupported(self, flow: _Flow, edge: PlanEdge) -> None:
        name = flow.path + flow.plan.nodes[edge.target].name
        message = f"edge {edge.index} is delivered by {edge.unsupported or 'stream'}, which is not spoken here"
        error = RunError("unsupported_delivery", message, self._attempt, name)
        self._world.emit(NewEvent(NODE_FAILED, name, {"error": error.to_wire()}))
        raise NodeFailed(error, final=True)

    def _error(self, failed: Failed | NodeFailed, name: str) -> tuple[RunError, bool]:
        """Return a failure as runs show it, that of a node of a subworkflow as it is, and whether it is final."""
        if isinstance(failed, NodeFailed):
            return failed.error, failed.final
        return RunError(failed.code, failed.message, self._attempt, name), False

    def _overdue(self, flow: _Flow, *, after_s: float = 0.0) -> bool:
        """Return whether the time of the subworkflow is over, or will be after a pause."""
        return flow.deadline is not None and self._host.now() + after_s >= flow.deadline

    def _pause(self, seconds: float) -> None:
        if seconds > 0:
            self._host.sleep(seconds)
        self._world.check()

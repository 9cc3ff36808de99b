"""What must hold after the soak, as pure functions over records: each returns what is wrong, nothing if all is well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal

from app.client import Received
from app.models.event import NODE_STARTED, RUN_CANCELLED, RUN_COMPLETED, RUN_FAILED, RUN_STARTED, TERMINAL, Event
from app.models.run import Run, RunStatus
from tests.soak.flows import FlowSpec, counter_key

ENDS: Final = {
    RunStatus.COMPLETED: RUN_COMPLETED,
    RunStatus.FAILED: RUN_FAILED,
    RunStatus.CANCELLED: RUN_CANCELLED,
}
NOT_ACCEPTED: Final = "not_accepted"
WORKER_LOST: Final = "worker_lost"
LIVE_STATE: Final = "live state"


# --- records -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Post:
    """What a client was told of one request. ``request``: its unique mark, which is also in the run's input."""

    request: str
    deployment: str
    has_key: bool
    fate: Literal["accepted", "unknown", "refused"]
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """An event as a stream showed it."""

    seq: int
    attempt: int
    type: str
    node: str | None = None
    epoch: int = 0


@dataclass(slots=True)
class Told:
    """What one follower of a run was told, all its connections together.

    ``lost``: what it had seen before each reset, which said that Redis had lost the run. ``broken``: why it gave up.
    """

    run_id: str
    seen: list[Seen] = field(default_factory=list)
    last_id: str = ""
    reconnects: int = 0
    lost: list[list[Seen]] = field(default_factory=list)
    broken: str = ""

    def hear(self, received: Received) -> None:
        self.last_id, event = received.id, received.event
        if received.reset:
            self.lost.append(self.seen)
            self.seen = []
        else:
            epoch = event.get("epoch", 0)
            self.seen.append(Seen(event["seq"], event["attempt"], event["type"], event.get("node"), epoch))

    @property
    def over(self) -> bool:
        return bool(self.seen) and self.seen[-1].type in TERMINAL


@dataclass(frozen=True, slots=True)
class Trace:
    """All that is on record of one run. ``witnesses``: nodes by their executions, in order; ``counts``: by key."""

    run: Run
    events: Sequence[Event] = ()
    witnesses: Sequence[str] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def request(self) -> str:
        return str(self.run.input.get("request", ""))

    @property
    def accepted(self) -> bool:
        """Whether the ledger says that this ever was a run, and not a refused request."""
        return self.run.error is None or self.run.error.code != NOT_ACCEPTED


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What the live store still holds. ``entries``: run ids by index; ``kept``: hashes and logs that never expire."""

    entries: Mapping[str, Collection[str]] = field(default_factory=dict)
    kept: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule; ``run_id`` is empty where no single run broke it."""

    rule: str
    detail: str
    run_id: str = ""

    def __str__(self) -> str:
        return f"{self.rule}: {f'run {self.run_id}: ' if self.run_id else ''}{self.detail}"


# --- one run -----------------------------------------------------------------------------------------------------

Faults = list[str]


def has_ended(trace: Trace) -> Faults:
    return [] if trace.run.ended else [f"it is {trace.run.status.value}"]


def has_one_end(trace: Trace) -> Faults:
    """Exactly one terminal event, and it is the last."""
    ends = [event.seq for event in trace.events if event.type in TERMINAL]
    if len(ends) != 1:
        return [f"it has {len(ends)} terminal events (seq {ends})"]
    return [] if trace.events[-1].seq == ends[0] else [f"seq {ends[0]} is its end and {trace.events[-1].seq} follows"]


def is_gapless(trace: Trace) -> Faults:
    """``seq`` counts 1..n in one epoch, and both are what the run says."""
    numbers = [event.seq for event in trace.events]
    faults = [] if numbers == list(range(1, len(numbers) + 1)) else [f"its events are numbered {numbers}"]
    if epochs := {event.epoch for event in trace.events} - {trace.run.epoch}:
        faults.append(f"the run's epoch is {trace.run.epoch} and it has events of {sorted(epochs)}")
    if trace.run.ended and trace.run.seq != len(numbers):
        faults.append(f"the run's seq is {trace.run.seq} and there are {len(numbers)} events")
    return faults


def says_how_it_ended(trace: Trace) -> Faults:
    """The run's status, output and error are those of its terminal event."""
    run = trace.run
    if not run.ended or not trace.events:
        return []
    last, data = trace.events[-1], trace.events[-1].data or {}
    if last.type != ENDS[run.status]:
        return [f"it is {run.status.value} and its last event is {last.type}"]
    error = None if run.error is None else run.error.to_wire()
    if data.get("error") != error:
        return [f"its error is {error} and its last event says {data.get('error')}"]
    if data.get("output") != run.output:
        return [f"its output is {run.output} and its last event says {data.get('output')}"]
    return []


def is_fenced(trace: Trace) -> Faults:
    """No attempt wrote after a later one had begun; each started once; the last is the run's."""
    faults = [
        f"seq {after.seq} is of attempt {after.attempt}, after one of attempt {before.attempt}"
        for before, after in pairwise(trace.events)
        if after.attempt < before.attempt
    ]
    starts = Counter(event.attempt for event in trace.events if event.type == RUN_STARTED)
    faults += [f"attempt {attempt} started {times} times" for attempt, times in starts.items() if times > 1]
    if trace.events and trace.events[-1].attempt != trace.run.attempt:
        faults.append(f"its attempt is {trace.run.attempt} and its last event is of {trace.events[-1].attempt}")
    return faults


def kept_its_half(trace: Trace, flow: FlowSpec) -> Faults:
    """What had completed behind a checkpoint was not executed again: by the events, and by the nodes' own word."""
    faults: Faults = []
    passed = min((e.attempt for e in trace.events if e.type == NODE_STARTED and e.node in flow.rest), default=None)
    for event in trace.events:
        again = event.type == NODE_STARTED and event.node in flow.half
        if passed is not None and again and event.attempt > passed:
            faults.append(f"seq {event.seq}: {event.node} started in attempt {event.attempt}; {passed} had passed it")
    beyond = False
    for node in trace.witnesses:
        beyond = beyond or node in flow.rest
        if beyond and node in flow.half:
            faults.append(f"its witnesses saw {list(trace.witnesses)}")
            break
    return faults


def counted_once(trace: Trace, flow: FlowSpec) -> Faults:
    """A completed run has counted each of its counters once, any other at most once."""
    faults: Faults = []
    for name in flow.counters:
        count = trace.counts.get(counter_key(trace.request, name), 0)
        completed = trace.run.status is RunStatus.COMPLETED
        if count > 1 or (completed and count != 1):
            faults.append(f"it is {trace.run.status.value} and its counter {name!r} is {count}")
    return faults


def ended_for_a_reason(trace: Trace, flow: FlowSpec, *, max_losses: int, cancelled: bool) -> Faults:
    """It ended as its flow does, or because somebody cancelled it, or because its workers were lost too often."""
    run = trace.run
    if not run.ended:
        return []
    if run.status is RunStatus.CANCELLED:
        return [] if cancelled else ["it is cancelled and nobody asked for that"]
    if run.status is RunStatus.COMPLETED:
        return [] if flow.fails_with is None else [f"it completed, and its flow fails with {flow.fails_with}"]
    assert run.error is not None
    if run.error.code == WORKER_LOST:
        short = run.losses < max_losses
        return [f"it is given up after {run.losses} losses, and {max_losses} are allowed"] if short else []
    return [] if run.error.code == flow.fails_with else [f"it failed: {run.error}"]


def was_never_begun(trace: Trace) -> Faults:
    """Whoever was told that a run was not accepted may ask for it again: so it must not have done anything."""
    started = any(event.type == RUN_STARTED for event in trace.events)
    return ["its record says not_accepted and a worker has begun it"] if started or trace.witnesses else []


# --- all runs together -------------------------------------------------------------------------------------------


def are_on_record(posts: Iterable[Post], traces: Mapping[str, Trace]) -> list[Violation]:
    """Every run that somebody was told of is in the ledger, and was not refused there."""
    found = []
    for post in posts:
        if post.run_id is None:
            continue
        trace = traces.get(post.run_id)
        if trace is None:
            found.append(Violation("accepted", "it was accepted and is not on record", post.run_id))
        elif not trace.accepted:
            found.append(Violation("accepted", "it was accepted and its record says not_accepted", post.run_id))
    return found


def are_one_each(posts: Iterable[Post], traces: Mapping[str, Trace]) -> list[Violation]:
    """A request made at most one run, however often it was sent; one that was refused made none."""
    made: dict[str, list[str]] = {}
    for trace in traces.values():
        if trace.accepted:
            made.setdefault(trace.request, []).append(trace.run.run_id)
    found = []
    for post in posts:
        runs = made.pop(post.request, [])
        if len(runs) > 1:
            found.append(Violation("one run a request", f"request {post.request} made {runs}", runs[0]))
        elif runs and post.fate == "refused":
            found.append(Violation("one run a request", "its request was refused", runs[0]))
        elif runs and post.run_id not in (None, runs[0]):
            found.append(Violation("one run a request", f"its request was told of {post.run_id}", runs[0]))
    found += [
        Violation("one run a request", f"nobody sent request {request!r}", runs[0]) for request, runs in made.items()
    ]
    return found


def were_told_one_story(told: Iterable[Told], traces: Mapping[str, Trace]) -> list[Violation]:
    """Each follower saw the run's events 1..n, each once, in order; and of each story that was lost the beginning."""
    found = []
    for each in told:
        trace = traces.get(each.run_id)
        log = [] if trace is None else [Seen(e.seq, e.attempt, e.type, e.node, e.epoch) for e in trace.events]
        if each.broken:
            found.append(Violation("one story", f"its follower gave up: {each.broken}", each.run_id))
        elif each.seen != log:
            numbers = [seen.seq for seen in each.seen]
            text = f"its follower saw {numbers} ({each.reconnects} reconnects, {len(each.lost)} resets), not {len(log)}"
            found.append(Violation("one story", text, each.run_id))
        elif each.lost and not _were_lost(each.lost, trace.run.epoch if trace else 0):
            places = [[f"{seen.epoch}:{seen.seq}" for seen in story] for story in each.lost]
            found.append(Violation("one story", f"its follower saw, before its resets, {places}", each.run_id))
    return found


def _were_lost(stories: Sequence[Sequence[Seen]], epoch: int) -> bool:
    """Return whether each story is 1..n of one epoch, later than the one before and earlier than ``epoch``."""
    epochs = [*(story[0].epoch for story in stories if story), epoch]
    return epochs == sorted(set(epochs)) and all(
        [(seen.seq, seen.epoch) for seen in story] == [(seq, story[0].epoch) for seq in range(1, len(story) + 1)]
        for story in stories
    )


def knows_only_the_living(registered: Collection[int], living: Collection[int]) -> list[Violation]:
    """The register has every living process, by process id, and nobody else."""
    found = [Violation("register", f"process {pid} is registered and dead") for pid in set(registered) - set(living)]
    return found + [Violation("register", f"process {pid} is not registered") for pid in set(living) - set(registered)]


def left_nothing(left: Leftovers) -> list[Violation]:
    """No index knows of any run, and whatever is left of one expires by itself."""
    found = [
        Violation(LIVE_STATE, f"the index {index!r} still has it", run_id)
        for index, ids in left.entries.items()
        for run_id in ids
    ]
    return found + [Violation(LIVE_STATE, f"the key {key!r} never expires") for key in sorted(left.kept)]


def prove(
    traces: Mapping[str, Trace],
    *,
    flows: Mapping[str, FlowSpec],
    posts: Sequence[Post],
    told: Sequence[Told],
    cancels: Collection[str],
    max_losses: int,
) -> list[Violation]:
    """Return every broken rule about runs."""
    of_the_log: dict[str, Callable[[Trace], Faults]] = {
        "ended": has_ended,
        "one end": has_one_end,
        "gapless": is_gapless,
        "truthful end": says_how_it_ended,
        "fenced": is_fenced,
    }
    found: list[Violation] = []
    for run_id, trace in traces.items():
        if not trace.accepted:
            found += [Violation("refused", text, run_id) for text in was_never_begun(trace)]
            continue
        flow = flows[trace.run.deployment_id]
        faults = {rule: check(trace) for rule, check in of_the_log.items()}
        faults["checkpoint"] = kept_its_half(trace, flow)
        faults["counted once"] = counted_once(trace, flow)
        asked = run_id in cancels
        faults["reason"] = ended_for_a_reason(trace, flow, max_losses=max_losses, cancelled=asked)
        found += [Violation(rule, text, run_id) for rule, texts in faults.items() for text in texts]
    return [
        *found, *are_on_record(posts, traces), *are_one_each(posts, traces), *were_told_one_story(told, traces)
    ]  # fmt: skip

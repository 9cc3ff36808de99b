"""The journal: what was durable is followed and not executed again, whenever an attempt is lost, and written before."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine import Cancelled, Fenced, HandBack
from app.engine.journal import MAX_ENTRY_BYTES, TRIES
from app.errors import ServerUnavailable
from app.models.event import NewEvent
from app.models.run import RunError, RunStatus
from app.nodes import HandlerError, Step
from app.nodes.registry import HandlerRegistry
from app.nodes.testing import MemoryHost
from app.ports import JournalPage
from app.store.memory import MemoryStore
from tests.flows import Ran, document, edge, lint, node, registry, run

PASS = {"kind": "source"}
CHECKPOINT = {"delivery": {"mode": "checkpoint"}}
DURABLE = {"delivery": {"mode": "durable"}}
EPHEMERAL = {"delivery": {"mode": "ephemeral"}}


class Lost(MemoryHost):
    """A host whose worker is gone after so many looks at it."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.left = looks
        self.wish = self._look

    def _look(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Fenced("gone")


class World:
    """One run's attempts over one ledger, and how often each of its packets was executed."""

    def __init__(self, source: dict[str, Any], **functions: Any) -> None:
        self.source = source
        self.store = MemoryStore()
        self.executed: list[str] = []
        self.handlers: HandlerRegistry = registry(**{name: self._noting(work) for name, work in functions.items()})

    def _noting(self, work: Any) -> Any:
        def handle(step: Step) -> Any:
            self.executed.append(step.key.removeprefix("run:"))
            return work(step)

        return handle

    def attempt(self, number: int, *, host: MemoryHost | None = None, input: Any = None, **options: Any) -> Ran:
        options = {"attempt": number, "token": f"t{number}", "ledger": self.store} | options
        return run(self.source, input, self.handlers, host=host, **options)

    def lose(self, number: int, looks: int, **options: Any) -> MemoryHost:
        host = Lost(looks)
        with pytest.raises(Fenced):
            self.attempt(number, host=host, **options)
        return host

    def entries(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for page in self.store.journal("run"):
            found |= orjson.loads(page.text)
        return found


def half_way(**first: Any) -> World:
    """in -> a -> b =checkpoint=> c -> end"""
    nodes = {"in": PASS, "a": node("t/a"), "b": node("t/b"), "c": node("t/c"), "end": PASS}
    edges = [edge("in", "a"), edge("a", "b"), edge("b", "c", **(first or CHECKPOINT)), edge("c", "end")]
    return World(
        document(nodes, edges),
        a=lambda step: {"n": [1]},
        b=lambda step: {"n": [*step.input["n"], 2]},
        c=lambda step: {"n": [*step.input["n"], 3]},
    )


# --- following -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [CHECKPOINT, DURABLE])
def test_the_next_attempt_goes_on_behind_the_checkpoint(mode: dict[str, Any]) -> None:
    world = half_way(**mode)
    world.lose(1, looks=3)
    assert world.executed == ["in/0/0", "in/0/0/1/0"]
    ran = world.attempt(2)
    assert ran.outcome.output == {"n": [1, 2, 3]}
    assert world.executed == ["in/0/0", "in/0/0/1/0", "in/0/0/1/0/2/0"]


def test_the_log_shows_what_was_taken_from_the_journal() -> None:
    world = half_way()
    world.lose(1, looks=3)
    assert world.attempt(2).events[:4] == [
        NewEvent("node.completed", "in", {"output": {}, "replayed": True}),
        NewEvent("node.completed", "a", {"output": {"n": [1]}, "replayed": True}),
        NewEvent("node.completed", "b", {"output": {"n": [1, 2]}, "replayed": True}),
        NewEvent("node.started", "c"),
    ]


def test_what_no_checkpoint_follows_is_executed_again() -> None:
    world = half_way()
    world.lose(1, looks=2)
    world.attempt(2)
    assert Counter(world.executed)["in/0/0"] == 2


def test_an_output_is_durable_before_its_edge_is_followed() -> None:
    world = half_way()
    seen: list[int] = []
    world.handlers = registry(
        a=lambda step: {"n": [1]},
        b=lambda step: {"n": [2]},
        c=lambda step: seen.append(len(world.store.journal("run"))),
    )
    ran = world.attempt(1)
    assert seen == [1]
    assert ran.outcome.status == RunStatus.COMPLETED
    assert world.entries() == {
        "in": {"passed": True}, "in/0/0": {"output": {"n": [1]}}, "in/0/0/1/0": {"output": {"n": [2]}},
    }  # fmt: skip


def test_a_run_without_durable_edges_writes_and_reads_nothing() -> None:
    world = half_way(delivery={"mode": "direct"})
    world.store.journal = None  # type: ignore[method-assign, assignment] # would fail if asked
    for number in (1, 2):
        world.attempt(number)
    assert world.store._journals == {}


def test_a_first_attempt_reads_no_journal() -> None:
    world = half_way()
    world.store.journal = None  # type: ignore[method-assign, assignment] # would fail if asked
    assert world.attempt(1).outcome.status == RunStatus.COMPLETED


def test_whatever_leaves_a_checkpoint_node_is_durable() -> None:
    nodes = {"a": node("t/a"), "save": {"kind": "checkpoint"}, "b": node("t/b")}
    world = World(document(nodes, [edge("a", "save"), edge("save", "b")]), a=lambda _: {"n": 1}, b=lambda _: {"n": 2})
    world.lose(1, looks=2)
    world.attempt(2)
    assert world.executed == ["a", "a/0/0/1/0"]


def test_an_edge_that_is_not_followed_makes_nothing_durable() -> None:
    source = document({"in": PASS, "a": PASS, "b": PASS}, [edge("in", "a", "output.x", **CHECKPOINT), edge("in", "b")])
    world = World(source)
    world.attempt(1)
    assert world.entries() == {}


def test_old_and_new_outputs_are_never_mixed() -> None:
    """``draw`` gives something else each time; both of its branches must see the same."""
    drawn = iter(range(10))
    nodes = {"draw": node("t/draw"), "left": node("t/left"), "right": node("t/right"), "both": node("core/join")}
    edges = [edge("draw", "left"), edge("draw", "right"), edge("left", "both", **CHECKPOINT), edge("right", "both")]
    world = World(
        document(nodes, edges),
        draw=lambda _: {"n": next(drawn)}, left=lambda step: step.input, right=lambda step: step.input,
    )  # fmt: skip
    world.lose(1, looks=2)
    assert world.attempt(2).outcome.output == {"left": {"n": 0}, "right": {"n": 0}}


def test_a_subworkflow_is_resumed_inside_and_skipped_once_it_is_done() -> None:
    source = document({"sub": {"kind": "subworkflow", "settings": {"workflowRef": "#/flows/y"}}, "z": node("t/z")})
    source["flows"]["x"]["edges"] = [edge("sub", "z", **DURABLE)]
    source["flows"]["y"] = {"nodes": {"p": node("t/p"), "q": node("t/q")}, "edges": [edge("p", "q", **CHECKPOINT)]}
    world = World(source, p=lambda _: {"p": 1}, q=lambda step: step.input | {"q": 1}, z=lambda step: step.input)
    world.lose(1, looks=2)
    world.lose(2, looks=3)
    assert world.executed == ["sub/flow/p", "sub/flow/p/0/0"]
    ran = world.attempt(3)
    assert world.executed[2:] == ["sub/0/0"]
    assert ran.outcome.output == {"p": 1, "q": 1}
    assert ran.story == ["=sub", "+z", "=z"]


def test_a_subworkflow_that_is_tried_again_keeps_what_was_durable_and_nothing_else() -> None:
    fails = iter([True, False])

    def last(step: Step) -> None:
        if next(fails):
            raise HandlerError("once", code="TEMPORARY")

    sub = {"kind": "subworkflow", "settings": {"workflowRef": "#/flows/y"}, "retryPolicy": {"maxAttempts": 2}}
    source = document({"sub": sub})
    names = {"p": node("t/p"), "q": node("t/q"), "r": node("t/r")}
    source["flows"]["y"] = {"nodes": names, "edges": [edge("p", "q", **CHECKPOINT), edge("q", "r")]}
    world = World(source, p=lambda _: {}, q=lambda _: {}, r=last)
    assert world.attempt(1).outcome.status == RunStatus.COMPLETED
    p, q, r = "sub/flow/p", "sub/flow/p/0/0", "sub/flow/p/0/0/1/0"
    assert world.executed == [p, q, r, q, r]


def test_a_branch_that_failed_alone_stays_failed() -> None:
    nodes = {"in": PASS, "mail": node("t/mail"), "work": node("t/work"), "end": node("t/end")}
    edges = [edge("in", "mail", **EPHEMERAL), edge("in", "work"), edge("work", "end", **CHECKPOINT)]

    def mail(step: Step) -> None:
        raise HandlerError("no server")

    world = World(document(nodes, edges), mail=mail, work=lambda _: {"w": 1}, end=lambda step: step.input)
    world.lose(1, looks=3)
    ran = world.attempt(2)
    assert ran.outcome.output == {"end": {"w": 1}}
    assert ran.story == ["=in", "!mail", "=work", "+end", "=end"]
    assert world.executed == ["in/0/0", "in/1/0", "in/1/0/2/0"]


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_however_often_it_is_lost_the_output_is_the_same_and_nothing_durable_runs_twice(data: st.DataObject) -> None:
    names = ["a", "b", "c", "d"]
    graph = data.draw(
        st.lists(
            st.builds(
                lambda source, target, when, mode: edge(source, target, when, delivery={"mode": mode}),
                st.sampled_from(names), st.sampled_from(names),
                st.sampled_from([None, "output.n < 12", "output.n % 2 == 0", "else"]),
                st.sampled_from(["direct", "checkpoint", "durable", "ephemeral"]),
            ),
            max_size=7,
        )
    )  # fmt: skip

    def odd(step: Step) -> Any:
        n = step.input.get("n", 1)
        if isinstance(n, int) and n % 5 == 4:
            raise HandlerError("four")
        return {"n": n + 1 if isinstance(n, int) else 0}

    refs = data.draw(st.lists(st.sampled_from(["t/odd", "t/add", "core/join"]), min_size=4, max_size=4))
    source = document({name: node(ref) for name, ref in zip(names, refs, strict=True)}, graph, entrypoints=["a", "b"])
    functions = {"odd": odd, "add": lambda step: {"n": len(str(step.input))}}

    def story(ran: Ran) -> list[tuple[str | None, str]]:
        return [(event.node, event.type) for event in ran.events if event.type in ("node.completed", "node.failed")]

    alone = World(source, **functions).attempt(1, input={"n": 1}, max_steps=25)
    world = World(source, **functions)
    number, durable = 0, set[str]()
    for looks in data.draw(st.lists(st.integers(0, 20), max_size=4)):
        number += 1
        before = len(world.executed)
        with contextlib.suppress(Fenced):
            world.attempt(number, host=Lost(looks), input={"n": 1}, max_steps=25)
        assert durable.isdisjoint(world.executed[before:])
        durable = set(world.entries())
    before = len(world.executed)
    last = world.attempt(number + 1, input={"n": 1}, max_steps=25)
    assert durable.isdisjoint(world.executed[before:])
    assert story(last) == story(alone)
    error, expected = last.outcome.error, alone.outcome.error
    assert (last.outcome.output, error and (error.code, error.node)) == (
        alone.outcome.output, expected and (expected.code, expected.node)
    )  # fmt: skip


# --- fencing ---------------------------------------------------------------------------------------------------------


def test_an_attempt_that_was_replaced_writes_nothing_and_stops() -> None:
    world = half_way()

    def replaced(step: Step) -> dict[str, Any]:
        world.handlers = half_way().handlers
        world.attempt(2)
        return {"n": ["stale"]}

    world.handlers = registry(a=replaced, b=lambda step: step.input, c=lambda step: pytest.fail("followed"))
    with pytest.raises(Fenced):
        world.attempt(1)
    assert world.entries()["in/0/0"] == {"output": {"n": [1]}}


def test_an_attempt_that_comes_late_stops_before_it_reads() -> None:
    world = half_way()
    world.attempt(3)
    pages = world.store.journal("run")
    with pytest.raises(Fenced):
        world.attempt(2)
    assert world.store.journal("run") == pages


def test_of_two_with_the_same_number_the_live_state_decides() -> None:
    """It went back in time and gave attempt 1 out again: that one asks to be given another number."""
    world = half_way()
    world.lose(1, looks=3)
    with pytest.raises(HandBack, match="journal_taken"):
        world.attempt(1, token="other")
    assert world.attempt(2).outcome.output == {"n": [1, 2, 3]}


# --- a ledger that is away -------------------------------------------------------------------------------------------


class Flaky(MemoryStore):
    """Fails so many calls of the journal, before or after they took effect."""

    failing = 0
    heard = False

    def journal(self, run_id: str) -> list[JournalPage]:
        self._fail()
        return super().journal(run_id)

    def journal_put(self, run_id: str, page: JournalPage) -> bool:
        written = super().journal_put(run_id, page) if self.heard else False
        self._fail()
        return written or super().journal_put(run_id, page)

    def _fail(self) -> None:
        self.failing -= 1
        if self.failing >= 0:
            raise ServerUnavailable("mongo", "away")


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("failing", range(1, TRIES))
def test_a_write_that_fails_is_tried_again_and_doubles_nothing(failing: int, heard: bool) -> None:
    world = half_way()
    store = world.store = Flaky()
    store.failing, store.heard = failing, heard
    ran = world.attempt(1)
    assert ran.outcome.output == {"n": [1, 2, 3]}
    assert len(store.journal("run")) == 1
    assert len(ran.host.slept) == failing


@pytest.mark.parametrize("heard", [False, True])
def test_a_ledger_that_stays_away_hands_the_run_back_with_the_edge_unfollowed(heard: bool) -> None:
    world = half_way()
    store = world.store = Flaky()
    store.failing, store.heard = TRIES, heard
    with pytest.raises(HandBack, match="mongo_unavailable"):
        world.attempt(1)
    assert world.executed == ["in/0/0", "in/0/0/1/0"]
    ran = world.attempt(2)
    assert ran.outcome.output == {"n": [1, 2, 3]}
    assert world.executed.count("in/0/0/1/0/2/0") == 1
    assert world.executed.count("in/0/0/1/0") == (1 if heard else 2)


def test_a_journal_that_cannot_be_read_hands_the_run_back_before_anything_runs() -> None:
    world = half_way()
    store = world.store = Flaky()
    store.failing = TRIES
    with pytest.raises(HandBack, match="mongo_unavailable"):
        world.attempt(2)
    assert world.executed == []


def test_a_run_that_is_cancelled_does_not_wait_for_the_ledger() -> None:
    world = half_way()
    store = world.store = Flaky()
    store.failing = TRIES
    host = MemoryHost()

    def cancelled() -> None:
        if host.slept:
            raise Cancelled

    host.wish = cancelled
    assert world.attempt(1, host=host).outcome.status == RunStatus.CANCELLED
    assert len(host.slept) == 1


def test_an_output_that_no_checkpoint_holds_fails_its_node() -> None:
    world = half_way()
    world.handlers = registry(a=lambda _: {}, b=lambda _: {"x": "y" * MAX_ENTRY_BYTES}, c=lambda _: {})
    error = world.attempt(1).outcome.error
    assert error is not None
    assert (error.code, error.node) == ("PERMANENT", "b")
    assert "a checkpoint holds" in error.message


def test_a_large_output_before_a_checkpoint_is_executed_again() -> None:
    world = half_way()
    large = {"x": "y" * MAX_ENTRY_BYTES}
    world.handlers = registry(a=lambda _: large, b=lambda _: {"n": 1}, c=lambda step: step.input)
    world.lose(1, looks=3)
    assert set(world.entries()) == {"in", "in/0/0/1/0"}
    assert world.attempt(2).outcome.output == {"n": 1}


# --- at most once ----------------------------------------------------------------------------------------------------


def pay(function: Any, **fields: Any) -> World:
    nodes = {"in": PASS, "pay": node("t/pay", **{"x-atMostOnce": True}, **fields), "end": node("t/end")}
    return World(document(nodes, [edge("in", "pay"), edge("pay", "end")]), pay=function, end=lambda step: step.input)


def lost_inside(step: Step) -> None:
    raise Fenced("gone")


def test_a_node_that_had_started_and_not_completed_does_not_run_again() -> None:
    world = pay(lost_inside)
    with pytest.raises(Fenced):
        world.attempt(1)
    ran = world.attempt(2)
    assert ran.outcome.error is not None
    assert (ran.outcome.error.code, ran.outcome.error.node, ran.outcome.error.attempt) == ("outcome_unknown", "pay", 2)
    assert ran.story == ["=in", "!pay"]
    assert world.executed == ["in/0/0"]


def test_that_it_starts_is_durable_before_it_does() -> None:
    seen: list[Any] = []
    world = pay(lambda step: seen.append(world.entries()))
    world.attempt(1)
    assert seen == [{"in": {"passed": True}, "in/0/0": {"started": True}}]


def test_a_node_that_completed_is_followed_though_its_edge_is_direct() -> None:
    world = pay(lambda _: {"paid": 1})
    world.lose(1, looks=2)
    assert world.attempt(2).outcome.output == {"paid": 1}
    assert world.executed == ["in/0/0", "in/0/0/1/0"]


def test_a_node_that_failed_is_not_tried_again_whatever_its_policy_says() -> None:
    def fail(step: Step) -> None:
        raise HandlerError("no", code="TEMPORARY")

    world = pay(fail, retryPolicy={"maxAttempts": 5})
    assert world.attempt(1).outcome.error == RunError("TEMPORARY", "no", 1, "pay")
    assert world.attempt(2).outcome.error == RunError("TEMPORARY", "no", 1, "pay")
    assert world.executed == ["in/0/0"]
    assert "/flows/x/nodes/pay/x-atMostOnce" in lint(world.source)


def test_it_does_not_start_while_the_ledger_is_away() -> None:
    world = pay(lambda _: {"paid": 1})
    store = world.store = Flaky()
    store.failing = TRIES
    with pytest.raises(HandBack):
        world.attempt(1)
    assert world.executed == []
    assert world.attempt(2).outcome.output == {"paid": 1}


def test_a_stopping_worker_hands_it_back_only_when_it_is_done() -> None:
    host = MemoryHost()

    def slow(step: Step) -> dict[str, int]:
        host.wish = stopping
        step.sleep(3)
        return {"paid": 1}

    def stopping() -> None:
        raise HandBack("stopping")

    world = pay(slow)
    with pytest.raises(HandBack):
        world.attempt(1, host=host)
    assert world.attempt(2).outcome.output == {"paid": 1}
    assert world.executed == ["in/0/0", "in/0/0/1/0"]

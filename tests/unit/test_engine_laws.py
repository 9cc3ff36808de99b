"""Laws of every run: the same again is the same, every packet has its own id, every node that starts ends."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.models.run import RunStatus
from app.nodes import HandlerError, Step
from tests.flows import document, edge, node, registry, run

NAMES = ["a", "b", "c", "d", "e"]
conditions = st.sampled_from(
    [None, None, "else", "output.n < 20", "output.n % 2 == 0", "input.n > 3", "output.missing"]
)
deliveries = st.sampled_from([{}, {"mode": "ephemeral", "backend": "redis"}, {"mode": "checkpoint"}])
edges = st.lists(
    st.builds(
        lambda source, target, when, delivery: edge(source, target, when, delivery=delivery),
        st.sampled_from(NAMES), st.sampled_from(NAMES), conditions, deliveries,
    ),
    max_size=9,
)  # fmt: skip
kinds = st.lists(st.sampled_from(["t/add", "t/double", "t/odd", "core/join"]), min_size=5, max_size=5)


def make(refs: list[str], graph: list[dict[str, Any]]) -> dict[str, Any]:
    return document({name: node(ref) for name, ref in zip(NAMES, refs, strict=True)}, graph, entrypoints=["a", "c"])


def number(step: Step) -> int:
    found = step.input.get("n", 1)
    return found if isinstance(found, int) else 1


@settings(max_examples=60, deadline=None)
@given(refs=kinds, graph=edges, start=st.integers(0, 9))
def test_a_run_is_deterministic_its_packets_distinct_and_its_events_whole(
    refs: list[str], graph: list[dict[str, Any]], start: int
) -> None:
    keys: list[str] = []

    def noting(work: Any) -> Any:
        def handle(step: Step) -> Any:
            keys.append(step.key)
            return work(step)

        return handle

    def odd(step: Step) -> dict[str, Any]:
        if number(step) % 7 == 6:
            raise HandlerError("six")
        return step.input

    handlers = registry(
        add=noting(lambda step: {"n": number(step) + 1}),
        double=noting(lambda step: {"n": min(number(step) * 2, 100)}),
        odd=noting(odd),
    )
    first = run(make(refs, graph), {"n": start}, handlers, max_steps=60)
    once, keys[:] = list(keys), []
    second = run(make(refs, graph), {"n": start}, handlers, max_steps=60)

    assert (first.outcome, first.events, once) == (second.outcome, second.events, keys)
    assert [key for key, times in Counter(keys).items() if times > 1] == []
    started = Counter(event.node for event in first.events if event.type == "node.started")
    ended = Counter(event.node for event in first.events if event.type in ("node.completed", "node.failed"))
    assert started == ended
    assert (first.outcome.status == RunStatus.FAILED) == (first.outcome.error is not None)

"""The engine: order, events, routing, cycles, failures, retries, branches that may fail."""

from __future__ import annotations

from typing import Any

import pytest

from app.engine import Cancelled, Fenced, HandBack
from app.errors import ServerUnavailable
from app.flowdsl import compile_flow
from app.live.streams import MemoryStreams
from app.models.event import NewEvent
from app.models.run import RunError, RunStatus
from app.nodes import HandlerError, Step
from app.nodes.testing import MemoryHost
from tests.flows import chain, document, edge, node, registry, run

PASS = {"kind": "source"}
ORDER = {"type": "object", "required": ["order"], "properties": {"order": {"type": "integer"}}}
REFUND = {"type": "object", "required": ["refund"]}
PACKETS = {"packets": {"Order": ORDER, "Refund": REFUND}}


def add(key: str, value: Any) -> Any:
    return lambda step: step.input | {key: value}


def test_events_tell_a_run_in_order() -> None:
    handlers = registry(
        talk=lambda step: [step.progress(0.5, "half"), step.token("Hi"), step.log("done", n=1)] and {"x": 1}
    )
    ran = run(document({"in": PASS, "talk": node("t/talk")}, chain("in", "talk")), {"a": 1}, handlers)
    assert ran.events == [
        NewEvent("node.started", "in"),
        NewEvent("node.completed", "in", {"output": {"a": 1}}),
        NewEvent("node.started", "talk"),
        NewEvent("node.progress", "talk", {"fraction": 0.5, "message": "half"}),
        NewEvent("node.token", "talk", {"text": "Hi"}),
        NewEvent("log", "talk", {"level": "info", "message": "done", "n": 1}),
        NewEvent("node.completed", "talk", {"output": {"x": 1}}),
    ]
    assert (ran.outcome.status, ran.outcome.output) == (RunStatus.COMPLETED, {"x": 1})


def test_packets_go_first_in_first_out_in_the_documents_order() -> None:
    names = ("in", "a", "b", "a2", "b2", "end")
    edges = [edge("in", "b"), edge("in", "a"), edge("a", "a2"), edge("b", "b2"), edge("a2", "end"), edge("b2", "end")]
    ran = run(document(dict.fromkeys(names, PASS), edges), {})
    assert [step[1:] for step in ran.story if step[0] == "+"] == ["in", "b", "a", "b2", "a2", "end", "end"]


def test_the_keys_of_steps_are_the_run_and_the_way_to_it() -> None:
    keys: list[str] = []
    handlers = registry(key=lambda step: keys.append(step.key))
    nodes = {"in/1": node("t/key"), "a": node("t/key"), "b": node("t/key")}
    run(document(nodes, [edge("in/1", "a"), edge("in/1", "b"), edge("a", "b")]), {}, handlers, run_id="r7")
    assert keys == ["r7:in~11", "r7:in~11/0/0", "r7:in~11/1/0", "r7:in~11/0/0/2/0"]


def test_one_sink_gives_its_last_packet_several_an_object_of_those_reached() -> None:
    handlers = registry(one=add("n", 1), two=add("n", 2))
    one_sink = document(
        {"in": PASS, "a": node("t/one"), "b": node("t/two"), "end": PASS},
        [edge("in", "a"), edge("in", "b"), edge("a", "end"), edge("b", "end")],
    )
    assert run(one_sink, {}, handlers).outcome.output == {"n": 2}
    several = document(
        {"in": PASS, "a": node("t/one"), "b": node("t/two"), "c": PASS},
        [edge("in", "a"), edge("in", "b"), edge("in", "c", "output.missing")],
    )
    assert run(several, {}, handlers).outcome.output == {"a": {"n": 1}, "b": {"n": 2}}
    assert run(document({"in": PASS, "a": PASS}, [edge("in", "a", "output.missing")]), {}).outcome.output is None


def test_when_decides_and_else_takes_the_rest() -> None:
    source = document(
        dict.fromkeys(["in", "big", "odd", "rest", "always"], PASS),
        [
            edge("in", "big", "output.n > 10"),
            edge("in", "rest", "else"),
            edge("in", "odd", "output.odd"),
            edge("in", "always"),
        ],
    )
    assert run(source, {"n": 11, "odd": True}).story[2:] == [
        "-rest",
        "+big",
        "=big",
        "+odd",
        "=odd",
        "+always",
        "=always",
    ]
    ran = run(source, {"n": 1})
    assert ran.story[2:] == ["-big", "-odd", "+rest", "=rest", "+always", "=always"]
    assert ran.events[2].data == {"edge": 0, "reason": "when: the condition does not hold"}


def test_a_condition_sees_what_went_into_its_node_and_the_runs_meta() -> None:
    source = document(
        {"a": node("t/drop"), "b": PASS}, [edge("a", "b", "input.secret == 1 && output.seen && meta.tier == 'gold'")]
    )
    ran = run(source, {"secret": 1}, registry(drop=lambda _: {"seen": True}), meta={"tier": "gold"})
    assert ran.outcome.output == {"seen": True}


def test_a_cycle_ends_by_its_condition_or_at_the_bound() -> None:
    handlers = registry(more=lambda step: {"n": step.input.get("n", 0) + 1})
    edges = [edge("in", "a"), edge("a", "a", "output.n < 5"), edge("a", "end", "else")]
    source = document({"in": PASS, "a": node("t/more"), "end": PASS}, edges)
    ran = run(source, {}, handlers)
    assert (ran.outcome.output, ran.story.count("+a")) == ({"n": 5}, 5)
    endless = run(document({"a": PASS}, [edge("a", "a")], entrypoints=["a"]), {}, max_steps=10)
    assert endless.outcome.error is not None
    assert endless.outcome.error.code == "max_steps"
    assert endless.story.count("+a") == 10


def test_branches_do_not_see_what_another_does_to_its_packet() -> None:
    def spoil(step: Step) -> None:
        step.input["list"].append("spoilt")

    given = {"list": [1]}
    source = document({"in": PASS, "bad": node("t/spoil"), "good": PASS}, [edge("in", "bad"), edge("in", "good")])
    ran = run(source, given, registry(spoil=spoil))
    assert ran.outcome.output == {"bad": {"list": [1, "spoilt"]}, "good": {"list": [1]}}
    assert given == {"list": [1]}


# --- packets -----------------------------------------------------------------------------------------------------


def by_packet() -> dict[str, Any]:
    return document(
        {"in": PASS, "orders": PASS, "refunds": PASS, "all": PASS},
        [
            edge("in", "orders", packet="#/components/packets/Order"),
            edge("in", "refunds", packet="Refund"),
            edge("in", "all"),
        ],
        components=PACKETS,
    )


def test_bare_edges_with_different_packets_are_followed_by_what_fits() -> None:
    ran = run(by_packet(), {"order": 3})
    assert ran.outcome.output == {"orders": {"order": 3}, "all": {"order": 3}}
    assert ran.events[2] == NewEvent(
        "node.skipped", "refunds", {"edge": 1, "reason": "packet: not a Refund: it: 'refund' is a required property"}
    )
    assert set(run(by_packet(), {"order": "x", "refund": 1}, validation="off").outcome.output) == {"refunds", "all"}


def test_a_bare_edge_beside_conditional_ones_of_the_same_packet_is_always_followed() -> None:
    packet = {"packet": "#/components/packets/Order"}
    source = document(
        {"in": PASS, "store": PASS, "alert": PASS},
        [edge("in", "store", **packet), edge("in", "alert", "output.alert", **packet)], components=PACKETS,
    )  # fmt: skip
    assert run(source, {"other": 1}).outcome.output == {"store": {"other": 1}}


@pytest.mark.parametrize(("validation", "status"), [("off", "completed"), ("warn", "completed"), ("strict", "failed")])
def test_elsewhere_a_mismatch_is_a_warning_or_an_error(validation: str, status: str) -> None:
    source = document({"in": PASS, "a": PASS}, [edge("in", "a", packet="Order")], components=PACKETS)
    ran = run(source, {"order": "x"}, validation=validation)
    assert ran.outcome.status == status
    assert bool(ran.logs) == (validation == "warn")
    if validation == "strict":
        assert ran.story == ["+in", "!in"]
        assert ran.outcome.error == RunError(
            "VALIDATION", "edge 0: not a Order: /order: 'x' is not of type 'integer'", 1, "in"
        )
    assert run(source, {"order": 1}, validation=validation).logs == []


def test_packets_may_refer_to_each_other_but_never_leave_the_document() -> None:
    packets = {
        "Line": {"type": "object", "required": ["sku"]},
        "Basket": {"type": "object", "properties": {"lines": {"items": {"$ref": "#/components/packets/Line"}}}},
        "Outside": {"$ref": "https://example.com/schema.json"},
        "Loop": {"$ref": "#/components/packets/Loop"},
    }
    for name, value, logs in [
        ("Basket", {"lines": [{"sku": 1}]}, 0), ("Basket", {"lines": [{}]}, 1), ("Outside", {}, 1), ("Loop", {}, 1),
    ]:  # fmt: skip
        source = document({"in": PASS, "a": PASS}, [edge("in", "a", packet=name)], components={"packets": packets})
        assert len(run(source, value).logs) == logs, name


def test_events_stand_for_their_payload() -> None:
    components = PACKETS | {"events": {"Placed": {"payload": {"$ref": "#/components/packets/Order"}}}}
    source = document(
        {"in": PASS, "a": PASS}, [edge("in", "a", packet="#/components/events/Placed")], components=components
    )
    assert run(source, {"order": 1}).logs == []
    assert run(source, {}).logs == ["edge 0: not a Placed: it: 'order' is a required property"]


def test_the_input_is_checked_against_the_entrypoints_message() -> None:
    source = document(
        {"in": PASS}, entrypoints=[{"message": {"$ref": "#/components/packets/Order"}}], components=PACKETS
    )
    assert run(source, {"order": 1}).logs == []
    assert "fits no entrypoint" in run(source, {}).logs[0]
    assert run(source, {}, validation="off").logs == []
    strict = run(source, {}, validation="strict")
    assert strict.outcome.error is not None
    assert strict.outcome.error.code == "VALIDATION"
    assert strict.story == []


# --- ports, entries, joins, subworkflows -------------------------------------------------------------------------


def test_an_output_leaves_by_the_port_that_it_names() -> None:
    source = document(
        {"in": PASS, "left": PASS, "right": PASS, "both": PASS},
        [edge("in.left", "left"), edge("in.right", "right"), edge("in", "both")],
    )
    assert set(run(source, {"route": "left"}).outcome.output) == {"left", "both"}
    assert set(run(source, {"name": "right", "route": 3}).outcome.output) == {"right", "both"}
    ran = run(source, {})
    assert set(ran.outcome.output) == {"both"}
    assert ran.events[2].data == {"edge": 0, "reason": "port: the output left by no port"}


def test_a_single_port_is_only_a_name() -> None:
    assert run(document({"in": PASS, "a": PASS}, [edge("in.out", "a.in")]), {"n": 1}).outcome.output == {"n": 1}


def test_a_step_knows_the_port_that_its_packet_came_in_by() -> None:
    source = document({"in": PASS, "a": node("t/port")}, [edge("in", "a.second")])
    assert run(source, {}, registry(port=lambda step: step.port)).outcome.output == "second"


def test_the_input_goes_to_the_entries_whose_filter_holds() -> None:
    points = ["a", {"node": "b", "filter": "input.n > 1"}, {"node": "c", "filter": "meta.x == 1"}]
    source = document(dict.fromkeys("abc", PASS), entrypoints=points)
    assert set(run(source, {"n": 2}).outcome.output) == {"a", "b"}
    message = document(dict.fromkeys("ab", PASS), entrypoints=[
        {"message": {}, "filter": "message.payload.n > 1"}, {"message": {}, "filter": "message.payload.n < 0"},
    ])  # fmt: skip
    assert set(run(message, {"n": -1}).outcome.output) == {"a", "b"}
    nothing = run(message, {"n": 1})
    assert (nothing.outcome.status, nothing.outcome.output) == (RunStatus.COMPLETED, None)
    assert nothing.logs == ["no entrypoint's filter holds for the input; nothing was executed"]


def test_join_waits_for_each_incoming_edge() -> None:
    handlers = registry(a=add("a", 1), b=add("b", 2))
    source = document(
        {"in": PASS, "a": node("t/a"), "b": node("t/b"), "slow": PASS, "join": node("core/join")},
        [edge("in", "a"), edge("in", "b"), edge("a", "join"), edge("b", "slow"), edge("slow", "join", "output.go")],
    )
    ran = run(source, {"go": True}, handlers)
    assert ran.outcome.output == {"a": {"go": True, "a": 1}, "slow": {"go": True, "b": 2}}
    assert ran.story.count("+join") == 1
    waiting = run(source, {}, handlers)
    assert waiting.outcome.output is None
    assert waiting.logs == ["join was still waiting for slow"]


def test_a_subworkflow_runs_inside_its_node() -> None:
    keys: list[str] = []
    handlers = registry(inner=lambda step: keys.append(step.key) or step.input | {"inner": 1})
    source = document(
        {"in": PASS, "sub": {"kind": "subworkflow", "settings": {"workflowRef": "#/flows/child"}}, "end": PASS},
        chain("in", "sub", "end"),
    )
    source["flows"]["child"] = {"nodes": {"first": node("t/inner"), "last": PASS}, "edges": chain("first", "last")}
    ran = run(source, {"n": 1}, handlers)
    assert ran.outcome.output == {"n": 1, "inner": 1}
    assert ran.story == [
        "+in",
        "=in",
        "+sub",
        "+sub/first",
        "=sub/first",
        "+sub/last",
        "=sub/last",
        "=sub",
        "+end",
        "=end",
    ]
    assert keys == ["run:in/0/0/flow/first"]
    source["flows"]["child"]["nodes"]["first"] = node("core/fail", settings={"message": "no", "code": "TEMPORARY"})
    failed = run(source, {"n": 1}, handlers)
    assert failed.outcome.error == RunError("TEMPORARY", "no", 1, "sub/first")
    assert failed.story[-2:] == ["!sub/first", "!sub"]


def limited(timeout_ms: int, **execution: Any) -> dict[str, Any]:
    """A subworkflow of three seconds' work, a second each."""
    limits = {"timeoutMs": timeout_ms, **execution}
    source = document(
        {"sub": {"kind": "subworkflow", "settings": {"workflowRef": "#/flows/child"}, "execution": limits}}
    )
    second = node("core/delay", settings={"seconds": 1})
    source["flows"]["child"] = {"nodes": {"a": second, "b": second, "c": second}, "edges": chain("a", "b", "c")}
    return source


def test_a_subworkflow_has_its_time_for_all_of_its_nodes() -> None:
    assert run(limited(3_500)).outcome.status == RunStatus.COMPLETED
    ran = run(limited(1_500))
    assert ran.outcome.error == RunError("TIMEOUT", "the node's time is over", 1, "sub/b")
    assert ran.story[-2:] == ["!sub/b", "!sub"]
    between = run(limited(2_000))
    assert between.outcome.error == RunError("TIMEOUT", "the subworkflow did not end within its timeoutMs", 1, "sub")
    assert "+sub/c" not in between.story


def test_a_subworkflow_that_ran_out_of_time_is_tried_again_as_a_whole_and_its_nodes_are_not() -> None:
    source = limited(1_500, maxRetries=1)
    source["flows"]["child"]["nodes"]["b"] = node("core/delay", settings={"seconds": 1}, retryPolicy={"maxAttempts": 9})
    ran = run(source)
    assert [step for step in ran.story if step[0] == "+"] == ["+sub", "+sub/a", "+sub/b"] * 2


def test_a_retry_that_would_begin_after_the_time_of_the_subworkflow_is_not_waited_for() -> None:
    source = limited(10_000)
    policy = {"maxAttempts": 9, "initialDelayMs": 4_000, "backoff": "fixed"}
    failing = node("core/fail", settings={"message": "busy", "code": "TEMPORARY"}, retryPolicy=policy)
    source["flows"]["child"] = {"nodes": {"a": failing}, "edges": []}
    ran = run(source)
    assert ran.outcome.error == RunError("TEMPORARY", "busy", 1, "sub/a")
    assert ran.story.count("+sub/a") == 3
    assert ran.host.time == 8.0


def test_a_default_time_limit_is_that_of_each_node_and_of_a_subworkflow_as_a_whole() -> None:
    source = limited(1)
    del source["flows"]["x"]["nodes"]["sub"]["execution"]
    source["flows"]["x"]["defaults"] = {"execution": {"timeoutMs": 1_500}}
    assert run(source).outcome.error == RunError("TIMEOUT", "the node's time is over", 1, "sub/b")


# --- streams -----------------------------------------------------------------------------------------------------


def streaming(**stream: Any) -> dict[str, Any]:
    return document(
        {"in": PASS, "a": PASS}, [edge("in", "a", delivery={"mode": "stream", "stream": {"topic": "t.x", **stream}})]
    )


def test_a_stream_edge_publishes_its_packet_and_the_run_goes_on() -> None:
    streams = MemoryStreams()
    ran = run(streaming(bus="redis"), {"n": 1}, streams=streams)
    assert ran.outcome.output == {"n": 1}
    assert streams.topics == {
        "t.x": [{"id": "run:in/0/0", "runId": "run", "flowId": "x", "node": "in", "packet": {"n": 1}}]
    }


@pytest.mark.parametrize("bus", ["kafka", "nats"])
def test_a_run_that_reaches_another_bus_fails(bus: str) -> None:
    streams = MemoryStreams()
    error = run(streaming(bus=bus), streams=streams).outcome.error
    assert error is not None
    assert (error.code, error.node, streams.topics) == ("unsupported_delivery", "a", {})


def test_what_is_published_again_has_the_same_id_and_an_edge_that_is_skipped_publishes_nothing() -> None:
    streams = MemoryStreams()
    source = streaming()
    source["flows"]["x"]["edges"].append(
        edge("in", "a", "output.n > 1", delivery={"mode": "stream", "stream": {"topic": "large"}})
    )
    for attempt in (1, 2):
        run(source, {"n": 1}, streams=streams, attempt=attempt)
    assert {topic: [message["id"] for message in kept] for topic, kept in streams.topics.items()} == {
        "t.x": ["run:in/0/0"] * 2
    }


def test_a_stream_edge_of_a_subworkflow_names_its_own_flow_and_the_way_to_its_node() -> None:
    streams = MemoryStreams()
    source = document({"sub": {"kind": "subworkflow", "settings": {"workflowRef": "#/flows/child"}}})
    source["flows"]["child"] = streaming()["flows"]["x"]
    run(source, {"n": 1}, streams=streams)
    [message] = streams.topics["t.x"]
    assert (message["flowId"], message["node"], message["runId"]) == ("child", "sub/in", "run")


def test_a_stream_server_that_stays_away_hands_the_run_back() -> None:
    class Away(MemoryStreams):
        def publish(self, topic: str, message: Any) -> None:
            raise ServerUnavailable("redis", "away")

    with pytest.raises(HandBack, match="redis_unavailable"):
        run(streaming(), streams=Away())


# --- failures ----------------------------------------------------------------------------------------------------


def test_a_failure_ends_the_run_and_is_told_once_at_its_node() -> None:
    source = document(
        {"in": PASS, "bad": node("core/fail", settings={"message": "no {{ what }}"}), "other": PASS},
        [edge("in", "bad"), edge("in", "other")],
    )
    ran = run(source, {"what": "luck"}, attempt=2)
    error = RunError("PERMANENT", "no luck", 2, "bad")
    assert (ran.outcome.status, ran.outcome.error, ran.outcome.output) == (RunStatus.FAILED, error, None)
    assert ran.story == ["+in", "=in", "+bad", "!bad"]
    assert ran.events[-1].data == {"error": error.to_wire()}


def failing(times: int, code: str = "TEMPORARY") -> Any:
    """A handler that fails the first so many times."""
    left = [times]

    def fail(step: Step) -> dict[str, Any]:
        left[0] -= 1
        if left[0] >= 0:
            raise HandlerError("not yet", code=code)
        return step.input

    return fail


def test_a_node_is_tried_again_as_its_max_retries_say() -> None:
    source = document({"a": node("t/f", execution={"maxRetries": 2})})
    ran = run(source, {}, registry(f=failing(2)))
    assert ran.outcome.status == RunStatus.COMPLETED
    assert ran.story == ["+a", "!a", "+a", "!a", "+a", "=a"]
    assert ran.host.slept == [1.0, 2.0]
    assert [event.data["inMs"] for event in ran.events if event.type == "node.failed" and event.data] == [1000, 2000]
    assert run(source, {}, registry(f=failing(3))).outcome.error == RunError("TEMPORARY", "not yet", 1, "a")


def test_the_edges_policy_counts_before_the_nodes() -> None:
    policy = {"maxAttempts": 3, "initialDelay": "PT0.5S", "backoff": "fixed", "jitter": True, "retryOn": ["TIMEOUT"]}
    source = document(
        {"in": PASS, "a": node("t/f", execution={"maxRetries": 9})},
        [edge("in", "a", delivery={"mode": "durable", "store": "mongo", "retryPolicy": policy})],
    )
    host = MemoryHost(chance=0.0)
    assert run(source, {}, registry(f=failing(2, "TIMEOUT")), host=host).outcome.status == RunStatus.COMPLETED
    assert host.slept == [0.4, 0.4]
    assert run(source, {}, registry(f=failing(1, "TEMPORARY"))).outcome.status == RunStatus.FAILED


@pytest.mark.parametrize("code", ["VALIDATION", "PERMANENT"])
def test_what_a_repetition_cannot_cure_is_not_repeated(code: str) -> None:
    ran = run(document({"a": node("t/f", execution={"maxRetries": 5})}), {}, registry(f=failing(1, code)))
    assert ran.story == ["+a", "!a"]


def test_an_ephemeral_branch_fails_alone() -> None:
    lost = {"delivery": {"mode": "ephemeral", "backend": "redis"}}
    source = document(
        {"in": PASS, "mail": PASS, "send": node("core/fail", settings={"message": "down"}), "end": PASS},
        [edge("in", "mail", **lost), edge("mail", "send"), edge("in", "end")],
    )
    ran = run(source, {"n": 1})
    assert (ran.outcome.status, ran.outcome.output) == (RunStatus.COMPLETED, {"end": {"n": 1}})
    assert ran.story[-1] == "!send"
    source["flows"]["x"]["edges"].pop()
    del source["flows"]["x"]["nodes"]["end"]
    error = run(source, {}).outcome.error
    assert error == RunError("no_output", "nothing was reached, because send failed: down", 1, "send")


@pytest.mark.parametrize(
    "delivery",
    [{"mode": "stream", "stream": {"bus": "kafka", "topic": "t"}}, {"mode": "ephemeral", "backend": "nats"}],
)
def test_a_run_that_reaches_a_delivery_that_we_do_not_speak_fails(delivery: dict[str, Any]) -> None:
    source = document({"in": PASS, "a": PASS}, [edge("in", "a", "output.go", delivery=delivery)])
    assert run(source, {}).outcome.status == RunStatus.COMPLETED
    ran = run(source, {"go": True})
    assert ran.outcome.error is not None
    assert (ran.outcome.error.code, ran.outcome.error.node) == ("unsupported_delivery", "a")
    assert ran.story == ["+in", "=in", "!a"]


def test_a_cycle_without_end_and_an_unsupported_delivery_fail_the_run_behind_an_ephemeral_edge_too() -> None:
    lost = {"mode": "ephemeral", "backend": "redis"}
    for last in (edge("a", "a"), edge("a", "b", delivery={"mode": "stream", "stream": {"bus": "nats"}})):
        nodes = dict.fromkeys(["in", "a", "b", "end"], PASS | {"execution": {"maxRetries": 3}})
        source = document(nodes, [edge("in", "a", delivery=lost), edge("in", "end"), last])
        call = {"kind": "subworkflow", "settings": {"workflowRef": "#/flows/x"}, "execution": {"maxRetries": 3}}
        source["flows"]["outer"] = {"nodes": {"sub": call}}
        for flow in ("x", "outer"):
            ran = run(source, {}, flow=flow, max_steps=20)
            assert ran.outcome.error is not None
            assert ran.outcome.error.code in ("max_steps", "unsupported_delivery")
            assert not any("inMs" in (event.data or {}) for event in ran.events)


@pytest.mark.parametrize(
    ("output", "place"),
    [
        ({"a": [1, {2}]}, "/a/1: is a set"),
        ({"n": 2**53}, "/n: is"),
        (float("nan"), "/: is nan"),
        ({1: 2}, "/: has the key 1"),
    ],
)
def test_an_output_that_json_cannot_say_fails_its_node(output: Any, place: str) -> None:
    error = run(document({"a": node("t/odd")}), {}, registry(odd=lambda _: output)).outcome.error
    assert error is not None
    assert error.code == "VALIDATION"
    assert f"output {place}" in error.message


def test_an_output_over_the_cap_is_cut_where_it_is_shown_but_goes_on_whole() -> None:
    sizes: list[int] = []
    handlers = registry(big=lambda _: {"text": "x" * 5_000}, size=lambda step: sizes.append(len(step.input["text"])))
    source = document({"a": node("t/big"), "b": node("t/size")}, chain("a", "b"))
    ran = run(source, {}, handlers, max_output_bytes=1_000)
    assert sizes == [5_000]
    shown = ran.outcome.output
    assert (shown["truncated"], shown["bytes"], len(shown["preview"])) == (True, 5_011, 1_000)
    assert ran.events[1].data == {"output": shown}


def test_settings_that_were_never_checked_fail_the_node() -> None:
    plan = compile_flow(document({"a": node("t/a")}), "x")
    handlers = registry(a=lambda _: None)
    object.__setattr__(plan.nodes[0], "candidates", ("core/count",))
    error = run(plan, {}, handlers).outcome.error
    assert error is not None
    assert (error.code, error.message) == ("VALIDATION", "settings /key: is required")


# --- the world's wishes ------------------------------------------------------------------------------------------


def interrupting(after: int, wish: BaseException) -> MemoryHost:
    left = [after]

    def check() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise wish

    return MemoryHost(wish=check)


def test_cancelling_is_an_outcome_and_is_seen_between_nodes() -> None:
    source = document(dict.fromkeys("abc", PASS), chain("a", "b", "c"))
    ran = run(source, {}, host=interrupting(2, Cancelled()))
    assert (ran.outcome.status, ran.story) == (RunStatus.CANCELLED, ["+a", "=a", "+b", "=b"])


@pytest.mark.parametrize("wish", [HandBack("stopping"), Fenced("lost")])
def test_other_wishes_of_the_world_reach_the_caller(wish: BaseException) -> None:
    with pytest.raises(type(wish)):
        run(document({"a": PASS}), {}, host=interrupting(0, wish))


def test_no_handler_can_hold_up_a_wish_of_the_world() -> None:
    def stubborn(step: Step) -> None:
        while True:
            try:
                step.sleep(60)
            except Exception:
                continue

    with pytest.raises(HandBack):
        run(document({"a": node("t/stubborn", execution={"maxRetries": 3})}), {}, registry(stubborn=stubborn),
            host=interrupting(3, HandBack("stopping")))  # fmt: skip


def test_a_pause_before_a_retry_ends_when_the_run_is_cancelled() -> None:
    source = document({"a": node("t/f", execution={"maxRetries": 5})})
    ran = run(source, {}, registry(f=failing(9)), host=interrupting(1, Cancelled()))
    assert (ran.outcome.status, ran.story) == (RunStatus.CANCELLED, ["+a", "!a"])


def test_a_worker_without_a_needed_handler_hands_the_run_back_before_it_starts() -> None:
    host = MemoryHost()
    plan = compile_flow(document({"in": PASS, "a": node("t/elsewhere")}, chain("in", "a")), "x")
    with pytest.raises(HandBack) as caught:
        run(plan, handlers=registry(), host=host)
    assert caught.value.reason == "missing_handler"
    assert host.events == []


@pytest.mark.parametrize(
    "last",
    [
        {"kind": "subworkflow", "settings": {"workflowRef": "#/flows/child"}},
        node("core/map", settings={"items": "list", "handler": "t/elsewhere"}),
    ],
)
def test_a_handler_that_is_missing_deep_inside_is_noticed_before_the_start_too(last: dict[str, Any]) -> None:
    host = MemoryHost()
    source = document({"in": PASS, "last": last}, chain("in", "last"))
    source["flows"]["child"] = {"nodes": {"a": node("t/elsewhere")}}
    with pytest.raises(HandBack):
        run(source, {"list": []}, registry(), host=host)
    assert host.events == []


def test_what_a_handler_does_later_to_what_it_returned_changes_nothing() -> None:
    kept = {"n": 0}

    def again(_: Step) -> dict[str, int]:
        kept["n"] += 1
        return kept

    ran = run(document({"a": node("t/again"), "b": node("t/again")}, chain("a", "b")), {}, registry(again=again))
    assert [event.data for event in ran.events if event.type == "node.completed"] == [
        {"output": {"n": 1}},
        {"output": {"n": 2}},
    ]


def test_a_source_runs_a_handler_where_one_is_named_and_known() -> None:
    source = document({"a": node("t/read", "source"), "b": node("t/none", "terminal")}, chain("a", "b"))
    assert run(source, {}, registry(read=lambda _: {"read": True})).outcome.output == {"read": True}
    assert run(source, {"n": 1}, registry()).outcome.output == {"n": 1}

"""Idempotency keys: a side effect happens once within its time, whichever run asks."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from app.engine import Cancelled, Fenced, HandBack
from app.errors import ServerUnavailable
from app.models.run import RunStatus
from app.nodes import HandlerError, Step
from app.nodes.testing import MemoryHost
from app.ports import KeyClaim
from app.store.memory import MemoryStore
from tests.flows import Ran, document, edge, faults, lint, node, registry, run

PASS = {"kind": "source"}


class World:
    """Runs of one flow ``in -> mail`` over one store; the store's clock is the hosts'."""

    def __init__(self, key: str = "input.to", **fields: Any) -> None:
        self.host = MemoryHost()
        self.store = MemoryStore(lambda: int(self.host.time * 1000))
        self.sent: list[Any] = []
        self.source = document(
            {"in": PASS, "mail": node("t/mail", idempotency={"keyExpression": key, "ttlSeconds": 60}, **fields)},
            [edge("in", "mail")],
        )

    def send(self, step: Step) -> dict[str, Any]:
        self.sent.append(step.input)
        return {"id": len(self.sent)}

    def run(self, input: Any, run_id: str = "r", function: Any = None, **options: Any) -> Ran:
        options = {"run_id": run_id, "ledger": self.store, "host": self.host} | options
        self.host.events.clear()
        return run(self.source, input, registry(mail=function or self.send), **options)


def test_another_run_is_given_what_came_of_it() -> None:
    world = World()
    assert world.run({"to": "ada"}, "r1").outcome.output == {"id": 1}
    ran = world.run({"to": "ada", "more": 1}, "r2")
    assert ran.outcome.output == {"id": 1}
    assert (ran.events[-1].type, ran.events[-1].data) == ("node.completed", {"output": {"id": 1}, "reused": True})
    assert world.sent == [{"to": "ada"}]


def test_another_key_another_time_another_node_are_executed() -> None:
    world = World()
    world.run({"to": "ada"}, "r1")
    world.run({"to": "bo"}, "r2")
    world.host.time += 60
    world.run({"to": "ada"}, "r3")
    world.source["flows"]["x"]["nodes"]["other"] = world.source["flows"]["x"]["nodes"].pop("mail")
    world.source["flows"]["x"]["edges"] = [edge("in", "other")]
    world.run({"to": "ada"}, "r4")
    assert len(world.sent) == 4


@pytest.mark.parametrize(
    ("key", "same", "different"),
    [
        ("input.a + ':' + input.b", {"a": "x", "b": "y"}, {"a": "x", "b": "z"}),
        ("payload.a", {"a": 1}, {"a": "1"}),
        ("meta.tenant + input.a", {"a": "x"}, {"a": "y"}),
        ("input.payload.a", {"a": "x"}, {"a": "y"}),
        ("input.payload.a", {"payload": {"a": "x"}}, {"payload": {"a": "y"}}),
        ("[input.a, input.b]", {"a": 1, "b": [2]}, {"a": [1, 2], "b": []}),
    ],
)
def test_a_key_speaks_of_the_packet_and_the_meta(key: str, same: Any, different: Any) -> None:
    world = World(key)
    for packet in (same, same, different):
        world.run(packet, meta={"tenant": "t"})
    assert world.sent == [same, different]


def test_a_packet_without_a_key_is_executed_with_a_warning() -> None:
    world = World()
    for _ in range(2):
        ran = world.run({"other": 1})
    assert len(world.sent) == 2
    assert ran.logs == ["mail: the idempotency key has no value for this packet; it is executed without"]


def test_after_a_failure_the_key_is_free() -> None:
    world = World()

    def fail(step: Step) -> None:
        raise HandlerError("no")

    assert world.run({"to": "ada"}, "r1", fail).outcome.status == RunStatus.FAILED
    assert world.run({"to": "ada"}, "r2").outcome.output == {"id": 1}


@pytest.mark.parametrize("wish", [Cancelled(), HandBack("stopping")])
def test_after_an_interruption_the_key_is_free(wish: BaseException) -> None:
    world = World()

    def interrupted(step: Step) -> None:
        raise wish

    with contextlib.suppress(HandBack):
        world.run({"to": "ada"}, "r1", interrupted)
    assert world.run({"to": "ada"}, "r2").outcome.output == {"id": 1}


def test_the_next_attempt_takes_over_what_a_lost_one_claimed() -> None:
    world = World()

    def lost(step: Step) -> None:
        raise Fenced("gone")

    with pytest.raises(Fenced):
        world.run({"to": "ada"}, "r1", lost)
    assert world.run({"to": "ada"}, "r1", attempt=2).outcome.output == {"id": 1}
    assert world.host.slept == []


def test_others_wait_and_then_fail_so_that_a_retry_may_help() -> None:
    world = World()
    inside: list[Ran] = []

    def slow(step: Step) -> dict[str, int]:
        inside.append(run(world.source, {"to": "ada"}, registry(mail=world.send), run_id="r2", ledger=world.store))
        return {"id": 7}

    ran = world.run({"to": "ada"}, "r1", slow)
    [waited] = inside
    assert waited.outcome.error is not None
    assert waited.outcome.error.code == "TEMPORARY"
    assert 30 <= sum(waited.host.slept) < 33
    assert world.sent == []
    assert ran.outcome.output == {"id": 7}
    assert world.run({"to": "ada"}, "r3").outcome.output == {"id": 7}


def test_nobody_waits_for_a_key_longer_than_the_subworkflow_around_the_node_has_time() -> None:
    class Taken(MemoryStore):
        def claim_key(self, key: str, *, holder: str, ttl_ms: int) -> KeyClaim:
            return KeyClaim("taken")

    source = document(
        {
            "sub": {
                "kind": "subworkflow",
                "settings": {"workflowRef": "#/flows/child"},
                "execution": {"timeoutMs": 5_000},
            }
        }
    )
    mail = node("t/mail", idempotency={"keyExpression": "input.to"}, retryPolicy={"maxAttempts": 9})
    source["flows"]["child"] = {"nodes": {"mail": mail}, "edges": []}
    ran = run(source, {"to": "ada"}, registry(mail=lambda step: None), ledger=Taken())
    assert ran.outcome.error is not None
    assert (ran.outcome.error.code, ran.outcome.error.node) == ("TEMPORARY", "sub/mail")
    assert ran.host.time == pytest.approx(5)


def test_who_waits_is_given_the_output_once_it_is_there() -> None:
    world = World()

    class Slow(MemoryStore):
        looks = 0

        def claim_key(self, key: str, *, holder: str, ttl_ms: int) -> KeyClaim:
            self.looks += 1
            return KeyClaim("taken") if self.looks < 4 else KeyClaim("kept", '{"id":9}')

    ran = world.run({"to": "ada"}, ledger=Slow())
    assert (ran.outcome.output, world.sent) == ({"id": 9}, [])
    assert len(world.host.slept) == 3


def test_a_store_that_stays_away_hands_the_run_back_before_the_side_effect() -> None:
    class Away(MemoryStore):
        def claim_key(self, key: str, *, holder: str, ttl_ms: int) -> KeyClaim:
            raise ServerUnavailable("mongo", "away")

    world = World()
    with pytest.raises(HandBack, match="mongo_unavailable"):
        world.run({"to": "ada"}, ledger=Away())
    assert world.sent == []


def test_what_cannot_be_a_key_is_refused_and_a_wrong_time_is_warned_about() -> None:
    at = "/flows/x/nodes/mail/idempotency"
    assert set(faults(World("input.to +").source)) == {f"{at}/keyExpression"}
    assert set(faults(World("order.id").source)) == {f"{at}/keyExpression"}
    source = World().source
    source["flows"]["x"]["nodes"]["mail"]["idempotency"]["ttlSeconds"] = "PT1H"
    assert set(lint(source)) == {f"{at}/ttlSeconds"}


def test_what_is_not_enabled_has_no_effect() -> None:
    world = World()
    world.source["flows"]["x"]["nodes"]["mail"]["idempotency"]["enabled"] = False
    for _ in range(2):
        world.run({"to": "ada"})
    assert len(world.sent) == 2

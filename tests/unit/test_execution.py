"""Executing a run in a worker: what becomes of nudges, ends, faults of servers, and missing handlers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.errors import ServerUnavailable
from app.models.run import RunStatus
from app.nodes.registry import HandlerRegistry
from app.ports import Leaving, Nudge
from app.runs.execution import Limits
from tests.integration.flows import counting, document, node
from tests.memory_world import MemoryWorld


@pytest.fixture
def world() -> MemoryWorld:
    world = MemoryWorld()
    world.deploy("counting", counting("n"), only=(1, ["worker"]))
    world.beat("worker")
    return world


def test_a_doubled_nudge_executes_once(world: MemoryWorld) -> None:
    run = world.runs.start("counting", {})
    world.nudges.sent *= 2
    assert world.work() == ["completed", "ended"]
    assert world.store.counter("n") == 1
    assert world.types(run).count("run.completed") == 1


def test_a_nudge_that_reached_another_role_executes_nothing(world: MemoryWorld) -> None:
    run = world.runs.start("counting", {})
    assert world.executor("gpu-worker").execute(run.run_id, "t") == "other_role"
    assert world.run(run).status is RunStatus.QUEUED


def test_a_nudge_of_an_unknown_run_executes_nothing(world: MemoryWorld) -> None:
    assert world.executor().execute("nothing", "t") == "missing"


def test_a_failing_node_fails_the_run_with_its_error(world: MemoryWorld) -> None:
    failing = document("failing", {"a": node("core/log", message="x"), "b": node("core/fail", message="no stock")})
    world.deploy("failing", failing, only=(1, ["worker"]))
    run = world.runs.start("failing", {})
    assert world.work() == ["failed"]
    error = world.run(run).error
    assert error is not None
    assert (error.code, error.message, error.node, error.attempt) == ("PERMANENT", "no stock", "b", 1)


def test_a_worker_without_the_handler_hands_the_run_back_and_is_not_given_it_again(world: MemoryWorld) -> None:
    run = world.runs.start("counting", {})
    assert world.work(handlers=HandlerRegistry()) == ["handed_back", "excluded"]
    now = world.run(run)
    assert (now.status, now.attempt, now.losses, now.excluded) == (RunStatus.QUEUED, 2, 0, ("worker-1",))


@pytest.mark.parametrize("reason", ["stopping", "draining"])
def test_a_worker_that_leaves_claims_nothing(world: MemoryWorld, reason: Leaving) -> None:
    run = world.runs.start("counting", {})
    assert world.executor(leaving=reason).execute(run.run_id, "t") == reason
    assert world.run(run).status is RunStatus.QUEUED


def test_a_worker_that_leaves_puts_the_nudge_back_that_it_took(world: MemoryWorld) -> None:
    run = world.runs.start("counting", {})
    nudge = world.take("worker")
    assert world.executor(leaving="draining").execute(run.run_id, "t") == "draining"
    assert world.take("worker") == nudge
    world.runs.cancel(run.run_id)
    assert world.executor(leaving="draining").execute(run.run_id, "t") == "draining"
    assert world.take("worker") is None


def test_while_the_ledger_is_away_the_run_goes_back_with_a_nudge(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = world.runs.start("counting", {})

    def away(*_: object) -> None:
        raise ServerUnavailable("mongo", "no answer")

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "get_version", away)
        nudge = world.take("worker")
        assert nudge is not None
        assert world.executor().execute(nudge.run_id, "t") == "handed_back"
    assert world.run(run).attempt == 2
    assert world.work() == ["completed"]


def test_a_version_that_has_vanished_fails_the_run_with_the_reason(world: MemoryWorld) -> None:
    run = world.runs.start("counting", {})
    live = world.live.get(run.run_id)
    assert live is not None
    world.live.cancel(run.run_id)
    world.live.create(live.with_(run_id="other", version_id="vanished"))
    assert world.executor().execute("other", "t") == "failed"
    ended = world.runs.get("other")
    assert ended.error is not None
    assert ended.error.code == "version_not_found"


def test_a_claim_whose_reply_was_lost_is_made_again_with_the_same_token(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.runs.execution.CLAIM_RETRY_S", 0.001)
    run = world.runs.start("counting", {})
    claim, lost = world.live.claim, [1, 1]

    def flaky(*args: object, **kwargs: object) -> object:
        answer = claim(*args, **kwargs)  # type: ignore[arg-type]
        if lost:
            lost.pop()
            raise ServerUnavailable("redis", "Timeout reading from socket")
        return answer

    monkeypatch.setattr(world.live, "claim", flaky)
    assert world.work() == ["completed"]
    assert world.types(run).count("run.started") == 1
    assert world.store.counter("n") == 1


def test_a_cancelled_run_ends_as_cancelled_between_its_nodes(world: MemoryWorld) -> None:
    world.deploy("long", document("long", {"a": node("core/delay", seconds=60)}), only=(1, ["worker"]))
    run = world.runs.start("long", {})
    claim = world.live.claim

    def claim_then_cancel(*args: object, **kwargs: object) -> object:
        answer = claim(*args, **kwargs)  # type: ignore[arg-type]
        world.live.cancel(run.run_id)
        return answer

    world.live.claim = claim_then_cancel  # type: ignore[method-assign]

    class Polling:
        """Stands in for the flusher's thread: asks once, as soon as an attempt comes."""

        def add(self, attempt: object) -> None:
            attempt.poll(ttl_ms=30_000)  # type: ignore[attr-defined]

        def discard(self, attempt: object) -> None: ...

        def poke(self) -> None: ...

    executor = world.executor(flusher=Polling())
    assert executor.execute(run.run_id, "t") == "cancelled"
    assert world.run(run).status is RunStatus.CANCELLED


class Hurried(MemoryWorld):
    """Time passes while a node waits."""

    def work(self, role: str = "worker", **changes: Any) -> list[str]:
        def monotonic() -> float:
            self.now_s += 120
            return self.now_s

        limits = Limits(lease_ttl_s=10**6, run_timeout_s=60, max_events=1000, output_max_bytes=1000)
        return super().work(role, limits=limits, monotonic=monotonic, **changes)


def test_an_attempt_that_takes_too_long_fails_the_run() -> None:
    world = Hurried()
    world.deploy("slow", counting("n"), only=(1, ["worker"]))
    world.beat("worker")
    run = world.runs.start("slow", {})
    assert world.work() == ["failed"]
    error = world.run(run).error
    assert error is not None
    assert (error.code, error.message) == ("timed_out", "an attempt may take 60 s")


def test_an_attempt_that_takes_too_long_is_repeated_as_the_flow_allows() -> None:
    world = Hurried()
    policy = {"maxAttempts": 3, "initialDelayMs": 2000, "backoff": "fixed", "retryOn": ["TIMEOUT"]}
    raw = json.loads(counting("n"))
    raw["flows"]["count-n"]["defaults"] = {"retryPolicy": policy}
    world.deploy("slow", json.dumps(raw).encode(), only=(1, ["worker"]))
    world.beat("worker")
    run = world.runs.start("slow", {})
    for retries in (1, 2):
        assert world.work() == ["retrying"]
        now = world.run(run)
        assert (now.status, now.attempt, now.retries, now.losses) == (RunStatus.QUEUED, retries + 1, retries, 0)
        assert world.runs.events(run.run_id)[-1].data == {"code": "timed_out", "inMs": 2000}
        world.nudges.nudge(Nudge.of(now))
        world.now_s += 3
    assert world.work() == ["failed"]
    assert world.run(run).retries == 2


def test_a_run_is_handed_back_to_a_role_that_can_go_on_at_once(world: MemoryWorld) -> None:
    world.deploy("either", counting("either"), only=(1, ["worker", "gpu-worker"]))
    run = world.runs.start("either", {})
    assert world.run(run).target_role == "worker"
    world.beat("gpu-worker")
    assert world.work(handlers=HandlerRegistry(), elsewhere=lambda _: "gpu-worker") == ["handed_back"]
    handed = world.run(run)
    assert (handed.target_role, handed.attempt, handed.losses) == ("gpu-worker", 2, 0)
    assert world.work("gpu-worker") == ["completed"]

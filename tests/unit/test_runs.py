"""Starting runs, and answering for them: what is written, in which order, and what a caller hears."""

from __future__ import annotations

import pytest

from app.errors import (
    AcceptanceUnknown,
    BadRequest,
    Conflict,
    IdempotencyMismatch,
    NoHealthyVariant,
    NotAccepted,
    NotFound,
    RegisterUnknown,
    ServerUnavailable,
    TooManyQueued,
)
from app.models.json_value import MAX_SAFE_INTEGER
from app.models.run import Run, RunStatus
from app.ports import RunFilter
from tests.integration.flows import counting
from tests.memory_world import MemoryWorld


@pytest.fixture
def world() -> MemoryWorld:
    world = MemoryWorld()
    world.deploy("counting", counting("n"), only=(1, ["worker"]))
    world.beat("worker")
    return world


def test_a_start_is_on_record_queued_and_known_to_the_role(world: MemoryWorld) -> None:
    run = world.runs.start("counting", {"input": {"a": 1}, "meta": {"session_id": "s"}})
    recorded = world.store.get_run(run.run_id)
    assert recorded is not None
    assert (recorded.status, recorded.input, recorded.target_role) == (RunStatus.QUEUED, {"a": 1}, "worker")
    assert world.types(run) == ["run.queued"]
    [nudge] = world.nudges.sent
    assert (nudge.run_id, nudge.target_role, nudge.attempt) == (run.run_id, "worker", 1)
    assert run.explain is not None
    assert run.explain["picked"] == "only"


def test_a_started_run_is_executed_and_found_everywhere(world: MemoryWorld) -> None:
    run = world.runs.start("counting", {"input": {"a": 1}})
    assert world.work() == ["completed"]
    assert world.run(run).output == {"a": 1, "count": 1}
    world.housekeeping.round()
    page = world.runs.list(RunFilter(status=RunStatus.COMPLETED))
    assert [item.run_id for item in page.items] == [run.run_id]
    assert world.store.events(run.run_id) == world.live.events(run.run_id)


def test_an_unknown_deployment_is_not_found(world: MemoryWorld) -> None:
    with pytest.raises(NotFound) as caught:
        world.runs.start("nothing", {})
    assert caught.value.code == "deployment_not_found"


def test_nobody_alive_is_a_refusal_and_nothing_is_written(world: MemoryWorld) -> None:
    world.deploy("lonely", counting("l"), only=(1, ["gpu-worker"]))
    with pytest.raises(NoHealthyVariant, match="no variants with healthy target roles"):
        world.runs.start("lonely", {})
    assert world.runs.list(RunFilter()).items == []
    assert world.nudges.sent == []


def test_a_worker_that_has_just_come_is_found_by_whoever_would_be_refused(world: MemoryWorld) -> None:
    world.deploy("lonely", counting("l"), only=(1, ["gpu-worker"]))
    assert world.runs.resolve("counting", {}).target_role == "worker"
    world.beat("gpu-worker")
    with pytest.raises(NoHealthyVariant):
        world.runs.resolve("lonely", {})
    world.now_s += 0.11
    assert world.runs.resolve("lonely", {}).target_role == "gpu-worker"
    assert world.runs.start("lonely", {}).target_role == "gpu-worker"


def test_a_register_that_does_not_know_is_told_from_nobody_alive(world: MemoryWorld) -> None:
    world.now_s += 20
    with pytest.raises(RegisterUnknown):
        world.runs.start("counting", {})
    assert world.runs.list(RunFilter()).items == []


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"input": [1]}, "/input"),
        ({"inputs": {}}, "/inputs"),
        ({"meta": "x"}, "/meta"),
        ({"priority": 10}, "/priority"),
        ({"priority": True}, "/priority"),
        ({"expiresAt": "tomorrow"}, "/expiresAt"),
        ({"expiresAt": "2026-11-30T21:40:00"}, "/expiresAt"),
        ({"idempotencyKey": ""}, "/idempotencyKey"),
        ({"input": {"deep": {"n": MAX_SAFE_INTEGER + 1}}}, "/input/deep/n"),
        ({"meta": {"t": [float("nan")]}}, "/meta/t/0"),
        ({"input": {"x": object()}}, "/input/x"),
    ],
)
def test_a_bad_request_names_the_place_and_leaves_no_run(
    world: MemoryWorld, body: dict[str, object], place: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        world.runs.start("counting", body)
    assert [fault.at for fault in caught.value.faults] == [place]
    assert world.runs.list(RunFilter()).items == []


def test_an_input_beyond_the_limit_is_refused() -> None:
    world = MemoryWorld(input_max_bytes=100)
    world.deploy("counting", counting("n"), only=(1, ["worker"]))
    world.beat("worker")
    with pytest.raises(BadRequest, match="bytes"):
        world.runs.start("counting", {"input": {"text": "x" * 200}})


def test_a_large_input_stays_in_the_ledger_and_reaches_the_flow(world: MemoryWorld) -> None:
    run = world.runs.start("counting", {"input": {"text": "x" * 300_000}})
    live = world.live.get(run.run_id)
    assert live is not None
    assert live.input == {}
    assert len(world.run(run).input["text"]) == 300_000
    world.work()
    assert len(world.run(run).output["text"]) == 300_000


# --- idempotency -------------------------------------------------------------------------------------------------


def test_the_same_key_and_body_give_the_same_run(world: MemoryWorld) -> None:
    first = world.runs.start("counting", {"input": {"a": 1}, "idempotencyKey": "k"})
    again = world.runs.start("counting", {"input": {"a": 1}, "idempotencyKey": "k"})
    assert again.run_id == first.run_id
    assert len(world.nudges.sent) == 1


def test_the_same_key_with_another_body_is_refused(world: MemoryWorld) -> None:
    first = world.runs.start("counting", {"input": {"a": 1}, "idempotencyKey": "k"})
    with pytest.raises(IdempotencyMismatch) as caught:
        world.runs.start("counting", {"input": {"a": 2}, "idempotencyKey": "k"})
    assert caught.value.run_id == first.run_id


def test_a_key_is_looked_up_before_anything_is_resolved(world: MemoryWorld) -> None:
    first = world.runs.start("counting", {"idempotencyKey": "k"})
    world.pass_time(60, "other")
    assert world.runs.start("counting", {"idempotencyKey": "k"}).run_id == first.run_id


def test_a_refused_request_does_not_use_its_key_up(world: MemoryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(world.live, "create", _away)
        with pytest.raises(NotAccepted):
            world.runs.start("counting", {"idempotencyKey": "k"})
    run = world.runs.start("counting", {"idempotencyKey": "k"})
    assert world.run(run).status is RunStatus.QUEUED


# --- faults of servers -------------------------------------------------------------------------------------------


def _away(*_: object, **__: object) -> None:
    raise ServerUnavailable("redis", "Timeout reading from socket")


def test_a_broker_that_is_away_refuses_before_anything_is_written(world: MemoryWorld) -> None:
    world.nudges.down = True
    with pytest.raises(ServerUnavailable, match="broker"):
        world.runs.start("counting", {})
    assert world.runs.list(RunFilter()).items == []


def test_a_live_store_that_goes_away_leaves_a_record_that_says_so(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.live, "create", _away)
    with pytest.raises(NotAccepted):
        world.runs.start("counting", {})
    [run] = world.runs.list(RunFilter()).items
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert run.error.code == "not_accepted"
    assert world.nudges.sent == []


def test_when_the_record_cannot_be_corrected_either_the_caller_hears_that_nobody_knows(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.live, "create", _away)
    monkeypatch.setattr(world.store, "refuse_run", _away)
    with pytest.raises(AcceptanceUnknown) as caught:
        world.runs.start("counting", {})
    assert world.store.get_run(caught.value.run_id) is not None


def test_a_lost_nudge_is_still_an_accepted_run(world: MemoryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.nudges, "nudge", _away)
    run = world.runs.start("counting", {})
    assert world.run(run).status is RunStatus.QUEUED


def test_a_run_that_redis_took_although_its_caller_was_refused_is_ended(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = world.live.create

    def create_and_lose_the_reply(run: Run) -> None:
        create(run)
        _away()

    monkeypatch.setattr(world.live, "create", create_and_lose_the_reply)
    with pytest.raises(NotAccepted):
        world.runs.start("counting", {})
    [recorded] = world.runs.list(RunFilter()).items
    world.housekeeping.round()
    live = world.live.get(recorded.run_id)
    assert live is not None
    assert live.status is RunStatus.CANCELLED
    recorded_now = world.store.get_run(recorded.run_id)
    assert recorded_now is not None
    assert recorded_now.error == recorded.error


def test_a_role_at_its_cap_is_refused_with_429s_error() -> None:
    world = MemoryWorld(role_depth_cap=2)
    world.deploy("counting", counting("n"), only=(1, ["worker"]))
    world.beat("worker")
    world.runs.start("counting", {})
    world.runs.start("counting", {})
    with pytest.raises(TooManyQueued):
        world.runs.start("counting", {})


def test_while_redis_is_away_a_run_is_known_from_the_ledger(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = world.runs.start("counting", {})
    monkeypatch.setattr(world.live, "get", _away)
    monkeypatch.setattr(world.live, "events", _away)
    assert world.run(run).status is RunStatus.QUEUED
    with pytest.raises(ServerUnavailable):
        world.runs.events(run.run_id)


def test_while_redis_is_away_the_events_of_an_ended_run_are_read_from_the_ledger(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = world.runs.start("counting", {})
    world.work()
    events = world.runs.events(run.run_id)
    world.housekeeping.round()
    monkeypatch.setattr(world.live, "get", _away)
    monkeypatch.setattr(world.live, "events", _away)
    assert world.runs.events(run.run_id) == events
    assert world.runs.events(run.run_id, after=events[-1].place) == []


# --- cancel and retry --------------------------------------------------------------------------------------------


def test_a_queued_run_that_is_cancelled_never_starts(world: MemoryWorld) -> None:
    run = world.runs.start("counting", {})
    assert world.runs.cancel(run.run_id).status is RunStatus.CANCELLED
    assert world.work() == ["ended"]
    assert world.store.counter("n") == 0
    with pytest.raises(Conflict) as caught:
        world.runs.cancel(run.run_id)
    assert caught.value.code == "run_ended"


def test_a_run_on_record_without_a_live_state_can_be_cancelled(world: MemoryWorld) -> None:
    run = Run("r9", "counting", "only", "f", "v", "worker", created_ms=1)
    world.store.insert_run(run)
    assert world.runs.cancel("r9").status is RunStatus.CANCELLED


def test_an_unknown_run_cannot_be_cancelled_or_followed(world: MemoryWorld) -> None:
    for ask in (world.runs.get, world.runs.cancel, world.runs.events, world.runs.retry):
        with pytest.raises(NotFound):
            ask("nothing")


def test_a_retry_is_a_new_run_with_the_same_input(world: MemoryWorld) -> None:
    run = world.runs.start("counting", {"input": {"a": 1}, "meta": {"session_id": "s"}})
    with pytest.raises(Conflict) as caught:
        world.runs.retry(run.run_id)
    assert caught.value.code == "run_not_ended"
    world.work()
    again = world.runs.retry(run.run_id)
    assert again.run_id != run.run_id
    assert (again.retry_of, again.input, again.meta) == (run.run_id, {"a": 1}, {"session_id": "s"})
    world.work()
    assert world.run(again).output == {"a": 1, "count": 2}


# --- resolving ---------------------------------------------------------------------------------------------------


def test_what_if_asks_about_other_roles_and_runs_nothing(world: MemoryWorld) -> None:
    world.deploy("two", counting("t"), a=(1, ["worker"]), b=(1, ["gpu-worker"]))
    assert world.runs.resolve("two", {}).variant.label == "a"
    assert world.runs.resolve("two", {"healthyRoles": ["gpu-worker"]}).variant.label == "b"
    with pytest.raises(NoHealthyVariant):
        world.runs.resolve("two", {"healthyRoles": []})
    with pytest.raises(BadRequest, match="healthyRoles"):
        world.runs.resolve("two", {"healthyRoles": ["GPU Worker"]})
    assert world.runs.list(RunFilter()).items == []

"""What every live store does, in memory and on Redis. The rules themselves: ``tests/unit/test_transitions.py``; that
the scripts follow them through any history: ``test_live_machine.py``."""
# Long because: each method of the port is looked at once, on both stores.

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.clock import system_clock
from app.errors import ServerUnavailable
from app.live.memory import MemoryLive
from app.live.redis import RedisLive
from app.models.event import Event, NewEvent
from app.models.role import QueueStats
from app.models.run import RUN_SCHEMA, Run, RunError, RunStatus, WorkerRef
from app.ports import Ack, Live, Outcome, Renewal
from tests.servers import free_port, wait_until

WORKER = WorkerRef("i1", "worker@host", "worker")
OTHER = WorkerRef("i2", "worker-2@host", "worker")
TTL = 30_000
DONE = Outcome(RunStatus.COMPLETED, output={"answer": 42})
LOG = NewEvent("log", data={"message": "hello"})

AWKWARD = [
    "", "a\nb\r\nc", "nul\x00nul", "\u2028\u2029", "\x1f\x7f", "😀 né", '"quoted" \\ back', "</script>", "{}[]",
    [], {}, [[]], {"": ""}, None, True, 0, -1, 2**53 - 1, 0.1, 1e300, 1.0,
]  # fmt: skip
"""Values that stores and their JSON libraries are known to change."""


@pytest.fixture(params=["memory", "redis"])
def live(request: pytest.FixtureRequest) -> Iterator[Live]:
    if request.param == "memory":
        yield MemoryLive(system_clock)
        return
    url, prefix = request.getfixturevalue("valkey"), request.getfixturevalue("key_prefix")
    redis = RedisLive(url, key_prefix=prefix, socket_timeout_s=2)
    yield redis
    redis.close()


def new_run(run_id: str = "r1", **changes: Any) -> Run:
    return Run(run_id, "shop", "canary", "checkout", "v1", "worker", created_ms=5).with_(**changes)


def started(live: Live, run_id: str = "r1", token: str = "t1", ttl_ms: int = TTL, **changes: Any) -> Run:
    """Create and claim a run."""
    live.create(new_run(run_id, **changes))
    run = live.claim(run_id, worker=WORKER, token=token, ttl_ms=ttl_ms).run
    assert run is not None
    return run


def types(live: Live, run_id: str = "r1") -> list[str]:
    return [event.type for event in live.events(run_id)]


def tick() -> None:
    """Wait until the servers' clock, which is this machine's, shows another millisecond."""
    before = system_clock()
    wait_until(lambda: system_clock() > before, seconds=1, what="the clock moves", step=0.0005)


# --- the journey of a run ----------------------------------------------------------------------------------------


def test_a_run_from_its_creation_to_its_end(live: Live) -> None:
    before = system_clock()
    assert live.create(new_run(), reason="manual") is True
    created = live.get("r1")
    assert created is not None
    assert before <= created.created_ms <= system_clock()
    assert created == new_run(created_ms=created.created_ms, seq=1, rev=1)

    claim = live.claim("r1", worker=WORKER, token="t1", ttl_ms=TTL)
    assert claim.refusal is None
    assert claim.run == live.get("r1")
    assert claim.run is not None
    assert claim.run.started_ms is not None
    assert claim.run == created.with_(
        status=RunStatus.RUNNING, worker=WORKER, started_ms=claim.run.started_ms, seq=2, rev=2
    )

    assert live.append("r1", "t1", 1, [LOG, NewEvent("node.started", "a", {})]) == Ack(True, 4)
    assert live.finish("r1", "t1", 2, [NewEvent("node.completed", "a", {"output": 1})], DONE) == Ack(True, 6)
    ended = live.get("r1")
    assert ended is not None
    assert ended.ended_ms is not None
    assert ended == claim.run.with_(
        status=RunStatus.COMPLETED, output={"answer": 42}, ended_ms=ended.ended_ms, seq=6, rev=3
    )

    events, place = live.events("r1"), {"targetRole": "worker", "variant": "canary"}
    times = [event.at_ms for event in events]
    assert times == sorted(times)
    assert [times[0], times[1], times[-1]] == [created.created_ms, claim.run.started_ms, ended.ended_ms]
    assert events == [
        Event("r1", 1, 1, "run.queued", times[0], data=place | {"reason": "manual"}),
        Event("r1", 2, 1, "run.started", times[1], data={"worker": WORKER.to_wire()}),
        Event("r1", 3, 1, "log", times[2], data={"message": "hello"}),
        Event("r1", 4, 1, "node.started", times[3], node="a", data={}),
        Event("r1", 5, 1, "node.completed", times[4], node="a", data={"output": 1}),
        Event("r1", 6, 1, "run.completed", times[5], data={"output": {"answer": 42}}),
    ]  # fmt: skip


def test_every_field_of_a_run_comes_back(live: Live) -> None:
    run = new_run(
        attempt=2, losses=1, input={"a": AWKWARD}, meta={"session_id": "s"}, explain={"candidates": []}, started_ms=7,
        waiting_for="no_workers", retry_of="r0", priority=9, expires_ms=2**50, rev=4, not_before_ms=3,
        excluded=("i8", 'i"9\n'), cancel_requested=True, validation="strict", target_roles=("worker", "gpu"),
        idempotency_key="key", body_hash="hash", input_in_ledger=True,
    )  # fmt: skip
    live.create(run)
    stored = live.get("r1")
    assert stored is not None
    assert stored == run.with_(created_ms=stored.created_ms, seq=1, rev=5)


@pytest.mark.parametrize("value", AWKWARD, ids=repr)
def test_any_json_value_comes_back_unchanged_everywhere(live: Live, value: Any) -> None:
    text = value if isinstance(value, str) else "x"
    run = started(live, input={"in": value, text: text}, meta={"m": value}, explain={"e": [value]})
    assert (run.input, run.meta, run.explain) == ({"in": value, text: text}, {"m": value}, {"e": [value]})

    live.append("r1", "t1", 1, [NewEvent(text, text, {"value": value, text: [value]}), NewEvent("log", data=None)])
    live.finish("r1", "t1", 2, [NewEvent("log", "", {})], Outcome(RunStatus.COMPLETED, output=value))
    noted, empty, bare, end = live.events("r1", after=2)
    assert (noted.type, noted.node, noted.data) == (text, text, {"value": value, text: [value]})
    assert (empty.node, empty.data, bare.node, bare.data) == (None, None, "", {})
    assert end.data == {"output": value}
    ended = live.get("r1")
    assert ended is not None
    assert repr(ended.output) == repr(value)  # 1 is not 1.0, nor true


def test_texts_of_errors_and_reasons_come_back_unchanged(live: Live) -> None:
    for number, text in enumerate(value for value in AWKWARD if isinstance(value, str)):
        run_id, error = f"r{number}", RunError(text, text, 2, node=text)
        started(live, run_id)
        live.hand_back(run_id, "t1", 1, [], reason=text, exclude=True)
        live.claim(run_id, worker=OTHER, token="t2", ttl_ms=TTL)
        live.finish(run_id, "t2", 1, [], Outcome(RunStatus.FAILED, error=error))
        rerouted, _, failed = live.events(run_id, after=2)
        assert rerouted.data == {"from": "worker", "to": "worker", "reason": text}
        assert failed.data == {"error": error.to_wire()}
        run = live.get(run_id)
        assert run is not None
        assert (run.error, run.excluded) == (error, ("i1",))


def test_what_a_caller_does_to_a_payload_afterwards_changes_nothing(live: Live) -> None:
    payload: dict[str, Any] = {"list": []}
    run = started(live, input=payload)
    run.input["list"].append(1)
    live.append("r1", "t1", 1, [NewEvent("log", data=payload)])
    payload["list"].append(2)
    live.events("r1")[-1].data["list"].append(3)  # type: ignore[index]
    stored = live.get("r1")
    assert stored is not None
    assert (stored.input, live.events("r1")[-1].data) == ({"list": []}, {"list": []})


def test_a_large_batch_is_one_call(live: Live) -> None:
    started(live)
    assert live.append("r1", "t1", 1, [LOG] * 20_000) == Ack(True, 20_002)
    assert [event.seq for event in live.events("r1", after=15_000, limit=20_000)] == list(range(15_001, 20_003))


# --- lost replies and wrong tokens -------------------------------------------------------------------------------


def test_the_same_call_twice_answers_the_same_and_happens_once(live: Live) -> None:
    assert (live.create(new_run()), live.create(new_run(input={"other": 1}))) == (True, False)
    for _ in range(2):
        claim = live.claim("r1", worker=WORKER, token="t1", ttl_ms=TTL)
        assert claim.run == live.get("r1")
        assert claim.run is not None
        assert claim.run.input == {}
    for _ in range(2):
        assert live.append("r1", "t1", 1, [LOG]) == Ack(True, 3)
    for _ in range(2):
        assert live.hand_back("r1", "t1", 2, [LOG], reason="draining") == Ack(True, 5)
    live.claim("r1", worker=WORKER, token="t2", ttl_ms=TTL)
    for _ in range(2):
        assert live.finish("r1", "t2", 1, [LOG], DONE) == Ack(True, 8)
    assert types(live) == [
        "run.queued", "run.started", "log", "log", "run.rerouted", "run.started", "log", "run.completed",
    ]  # fmt: skip


def test_a_finish_whose_batch_was_written_before_adds_only_the_end(live: Live) -> None:
    started(live)
    live.append("r1", "t1", 1, [LOG])
    assert live.finish("r1", "t1", 1, [LOG], DONE) == Ack(True, 4)


def test_an_end_that_is_sent_is_carried_out_before_whatever_is_asked_next(live: Live) -> None:
    started(live)
    sent = live.send_finish("r1", "t1", 1, [LOG], DONE)
    ended = live.get("r1")
    assert ended is not None
    assert ended.status is RunStatus.COMPLETED
    assert sent.get() == sent.get() == live.finish("r1", "t1", 1, [LOG], DONE) == Ack(True, 4)
    assert sent.known()
    assert types(live)[-2:] == ["log", "run.completed"]


def test_an_end_that_is_sent_with_another_token_is_refused(live: Live) -> None:
    before = started(live)
    assert not live.send_finish("r1", "t2", 1, [LOG], DONE).get().ok
    assert live.get("r1") == before


def test_another_token_changes_nothing(live: Live) -> None:
    before = started(live)
    assert live.claim("r1", worker=OTHER, token="t2", ttl_ms=TTL).refusal == "taken"
    for run_id in ("r1", "r2"):
        assert live.append(run_id, "t2", 1, [LOG]) == Ack(False)
        assert live.append(run_id, "t2", 1, []) == Ack(False)
        assert live.finish(run_id, "t2", 1, [LOG], DONE) == Ack(False)
        assert live.hand_back(run_id, "t2", 1, [LOG], reason="draining") == Ack(False)
        assert live.renew([(run_id, "t2")], ttl_ms=TTL).refused == {run_id}
    assert live.get("r1") == before
    assert len(live.events("r1")) == 2


def test_a_batch_with_a_terminal_event_is_refused_before_anything_is_sent(live: Live) -> None:
    before = started(live)
    with pytest.raises(ValueError, match=r"run\.completed"):
        live.append("r1", "t1", 1, [LOG, NewEvent("run.completed")])
    with pytest.raises(ValueError, match="an outcome must be"):
        live.finish("r1", "t1", 1, [], Outcome(RunStatus.QUEUED))
    assert live.get("r1") == before


def test_one_of_many_claims_wins(live: Live) -> None:
    live.create(new_run())

    def claim(number: int) -> str | None:
        return live.claim("r1", worker=WORKER, token=f"t{number}", ttl_ms=TTL).refusal

    with ThreadPoolExecutor(8) as pool:
        assert sorted(map(str, pool.map(claim, range(24)))) == ["None", *["taken"] * 23]
    assert types(live) == ["run.queued", "run.started"]


def test_appends_of_many_threads_leave_no_gap(live: Live) -> None:
    for number in range(4):
        started(live, f"r{number}")

    def append(batch: int) -> None:
        for number in range(4):
            live.append(f"r{number}", "t1", batch, [LOG, LOG])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append, range(1, 21)))
    for number in range(4):
        seqs = [event.seq for event in live.events(f"r{number}")]
        assert seqs == list(range(1, len(seqs) + 1))


# --- leases, cancel, break ---------------------------------------------------------------------------------------


def test_many_leases_are_renewed_in_one_call(live: Live) -> None:
    for number in range(5):
        started(live, f"r{number}", token=f"t{number}", ttl_ms=0)
    live.cancel("r1")
    live.cancel("r2", force=True)
    leases = [(f"r{number}", f"t{number}") for number in range(4)]
    assert live.renew([*leases, ("r4", "other"), ("r9", "t9")], ttl_ms=TTL) == Renewal(
        refused=frozenset({"r4", "r9"}), cancelled=frozenset({"r1", "r2"}), forced=frozenset({"r2"})
    )
    assert live.expired_leases(10) == ["r4"]
    assert live.renew([], ttl_ms=TTL) == Renewal()


def test_an_expired_lease_can_be_broken_once(live: Live) -> None:
    run = started(live, ttl_ms=0)
    assert live.expired_leases(10) == ["r1"]
    wrong = {"reason": "lost", "role": None, "pause_ms": 0, "max_losses": 3}
    assert live.break_lease("r1", attempt=2, **wrong) is None  # type: ignore[arg-type]
    broken = live.break_lease("r1", attempt=1, reason="lost", role="gpu", pause_ms=TTL, max_losses=3)
    assert broken is not None
    assert broken == live.get("r1")
    assert broken == run.with_(
        status=RunStatus.QUEUED, attempt=2, losses=1, worker=None, target_role="gpu", seq=3, rev=3,
        not_before_ms=broken.not_before_ms,
    )  # fmt: skip
    assert live.expired_leases(10) == []
    assert live.break_lease("r1", attempt=1, reason="lost", role="gpu", pause_ms=TTL, max_losses=3) is None
    assert live.append("r1", "t1", 1, [LOG]) == Ack(False)


def test_a_lease_in_force_is_broken_only_by_its_token(live: Live) -> None:
    started(live)
    options: dict[str, Any] = {"attempt": 1, "reason": "child died", "role": None, "pause_ms": 0, "max_losses": 3}
    assert live.break_lease("r1", **options) is None
    assert live.break_lease("r1", token="t2", **options) is None
    assert live.break_lease("r9", token="t1", **options) is None
    assert live.break_lease("r1", token="t1", **options) is not None


def test_the_last_loss_fails_the_run(live: Live) -> None:
    started(live, losses=2, attempt=3)
    failed = live.break_lease("r1", attempt=3, reason="lost", role=None, pause_ms=0, max_losses=3, token="t1")
    assert failed is not None
    assert (failed.status, failed.losses, failed.attempt) == (RunStatus.FAILED, 3, 3)
    assert failed.error is not None
    assert (failed.error.code, live.events("r1")[-1].data) == ("worker_lost", {"error": failed.error.to_wire()})


def test_a_cancel_reaches_a_queued_run_at_once_and_a_running_one_at_its_next_word(live: Live) -> None:
    live.create(new_run("queued"))
    assert [live.cancel(run_id) for run_id in ("queued", "queued", "none")] == ["cancelled", "ended", "missing"]
    assert types(live, "queued") == ["run.queued", "run.cancelled"]
    assert live.claim("queued", worker=WORKER, token="t1", ttl_ms=TTL).refusal == "ended"

    started(live, "running")
    assert [live.cancel("running"), live.cancel("running")] == ["requested", "requested"]
    assert live.append("running", "t1", 1, []) == Ack(True, 2, cancelled=True)
    live.cancel("running", force=True)
    assert live.append("running", "t1", 1, [LOG]) == Ack(True, 3, cancelled=True, force=True)
    assert live.hand_back("running", "t1", 2, [], reason="stopping") == Ack(True, 4, cancelled=True, force=True)
    assert types(live, "running")[-1] == "run.cancelled"


@pytest.mark.parametrize(
    ("changes", "worker", "refusal"),
    [
        ({"target_role": "gpu"}, WORKER, "other_role"),
        ({"not_before_ms": 2**50}, WORKER, "too_early"),
        ({"excluded": ("i1",)}, WORKER, "excluded"),
        ({"schema": RUN_SCHEMA + 1}, WORKER, "newer_schema"),
    ],
)
def test_a_claim_is_refused_with_the_reason(
    live: Live, changes: dict[str, Any], worker: WorkerRef, refusal: str
) -> None:
    assert live.claim("r1", worker=worker, token="t1", ttl_ms=TTL).refusal == "missing"
    live.create(new_run(**changes))
    before = live.get("r1")
    assert live.claim("r1", worker=worker, token="t1", ttl_ms=TTL).refusal == refusal
    assert live.get("r1") == before
    assert live.queues(["worker"])["worker"].running == 0


def test_an_instance_is_excluded_only_by_its_whole_id(live: Live) -> None:
    live.create(new_run(excluded=("i11", "xi1", "i1,i1", 'i1"')))
    assert live.claim("r1", worker=WORKER, token="t1", ttl_ms=TTL).run is not None


def test_a_run_of_a_newer_schema_is_left_alone(live: Live) -> None:
    live.create(new_run(schema=RUN_SCHEMA + 1))
    live.create(new_run("r2"))
    assert live.cancel("r1") == "newer_schema"
    assert [run.run_id for run in live.changed(10)] == ["r2"]
    live.archived("r1", keep_ms=0)
    assert live.get("r1") is not None


def test_a_run_started_when_its_first_attempt_did(live: Live) -> None:
    first = started(live)
    live.hand_back("r1", "t1", 1, [], reason="draining")
    tick()
    again = live.claim("r1", worker=WORKER, token="t2", ttl_ms=TTL).run
    assert again is not None
    assert (again.attempt, again.started_ms) == (2, first.started_ms)


# --- indexes -----------------------------------------------------------------------------------------------------


def test_queues_count_what_waits_and_what_runs(live: Live) -> None:
    none = QueueStats()
    assert live.queues([]) == {}
    assert live.queues(["worker", "gpu"]) == {"worker": none, "gpu": none}
    for run_id in ("r1", "r2", "r3"):
        live.create(new_run(run_id))
        tick()
    live.create(new_run("paused", target_role="gpu", not_before_ms=system_clock() + TTL))
    first, second = live.get("r1"), live.get("r2")
    assert first is not None
    assert second is not None
    assert live.queues(["worker", "gpu", "none"]) == {
        "worker": QueueStats(3, 0, first.created_ms), "gpu": QueueStats(1, 0, None), "none": none,
    }  # fmt: skip
    live.claim("r1", worker=WORKER, token="t1", ttl_ms=TTL)
    assert live.queues(["worker"]) == {"worker": QueueStats(2, 1, second.created_ms)}
    live.finish("r1", "t1", 1, [], DONE)
    live.cancel("r2")
    assert live.queues(["worker"])["worker"].queued == 1
    assert live.queues(["worker"])["worker"].running == 0


def test_queued_lists_the_longest_waiting_first_and_no_run_in_its_pause(live: Live) -> None:
    for run_id, priority in (("r3", 0), ("r1", 9), ("r2", 5)):
        live.create(new_run(run_id, priority=priority))
        tick()
    live.create(new_run("paused", not_before_ms=system_clock() + TTL))
    assert live.queued("worker", 10) == ["r3", "r1", "r2"]
    assert live.queued("worker", 2) == ["r3", "r1"]
    live.claim("r3", worker=WORKER, token="t1", ttl_ms=TTL)
    live.hand_back("r3", "t1", 1, [], reason="draining")
    assert live.queued("worker", 10) == ["r1", "r2", "r3"]
    live.claim("r1", worker=WORKER, token="t1", ttl_ms=TTL)
    live.hand_back("r1", "t1", 1, [], reason="draining", role="gpu")
    assert (live.queued("worker", 10), live.queued("gpu", 10)) == (["r2", "r3"], ["r1"])


def test_a_pause_ends(live: Live) -> None:
    started(live)
    live.break_lease("r1", attempt=1, reason="lost", role=None, pause_ms=30, max_losses=3, token="t1")
    wait_until(lambda: live.queued("worker", 10) == ["r1"], seconds=5, what="the pause is over")
    assert live.claim("r1", worker=WORKER, token="t2", ttl_ms=TTL).run is not None


def test_expired_leases_are_listed_oldest_first(live: Live) -> None:
    for run_id in ("r2", "r3", "r1"):
        started(live, run_id, ttl_ms=0)
        tick()
    started(live, "r4", ttl_ms=TTL)
    assert live.expired_leases(10) == ["r2", "r3", "r1"]
    assert live.expired_leases(1) == ["r2"]


def test_changed_runs_are_listed_until_the_ledger_has_them(live: Live) -> None:
    for run_id in ("r2", "r1"):
        live.create(new_run(run_id))
        tick()
    live.cancel("r2")
    assert live.changed(10) == [live.get("r2"), live.get("r1")]
    assert [run.run_id for run in live.changed(1)] == ["r2"]
    live.mirrored("r2", 1)
    assert [run.run_id for run in live.changed(10)] == ["r2", "r1"], "rev 2 is not on record yet"
    live.mirrored("r2", 2)
    live.mirrored("r1", 1)
    live.mirrored("none", 1)
    assert live.changed(10) == []
    live.claim("r1", worker=WORKER, token="t1", ttl_ms=TTL)
    live.mirrored("r1", 2)
    live.append("r1", "t1", 1, [LOG])
    assert live.changed(10) == [], "events alone are no change"


def test_an_archived_run_goes_when_its_time_is_over(live: Live) -> None:
    started(live)
    live.archived("r1", keep_ms=0)
    assert live.get("r1") is not None, "it has not ended"
    live.finish("r1", "t1", 1, [], DONE)
    live.archived("r1", keep_ms=TTL)
    assert live.changed(10) == []
    assert live.get("r1") is not None
    live.archived("r1", keep_ms=1)
    wait_until(lambda: live.get("r1") is None, seconds=5, what="the run is gone")
    assert live.events("r1") == []
    assert live.create(new_run()) is True
    assert types(live) == ["run.queued"]


def test_events_are_read_in_pages(live: Live) -> None:
    started(live)
    live.append("r1", "t1", 1, [LOG] * 3)
    assert [event.seq for event in live.events("r1", after=2)] == [3, 4, 5]
    assert [event.seq for event in live.events("r1", after=1, limit=2)] == [2, 3]
    assert live.events("r1", after=5) == []
    assert live.events("none") == []
    assert live.get("none") is None


def test_one_caller_a_period_gets_a_job(live: Live) -> None:
    assert [live.guard("mirror", period_ms=TTL) for _ in range(3)] == [True, False, False]
    assert live.guard("other", period_ms=1)
    wait_until(lambda: live.guard("other", period_ms=1), seconds=5, what="the period is over")


def test_a_live_store_that_is_there_answers(live: Live) -> None:
    live.ping()
    assert live.headroom()


# --- Redis alone -------------------------------------------------------------------------------------------------


def test_two_installations_on_one_server_do_not_meet(valkey: str, key_prefix: str) -> None:
    one, two = (RedisLive(valkey, key_prefix=key_prefix + name, socket_timeout_s=2) for name in ("a:", "b:"))
    one.create(new_run())
    assert two.get("r1") is None
    assert two.queues(["worker"])["worker"].queued == 0
    assert two.create(new_run()) is True
    one.close()
    two.close()


def test_a_server_that_is_not_there_is_unavailable() -> None:
    live = RedisLive(f"redis://127.0.0.1:{free_port()}/0", key_prefix="x:", socket_timeout_s=0.5)
    for call in (live.ping, live.headroom, lambda: live.create(new_run()), lambda: live.get("r1")):
        with pytest.raises(ServerUnavailable):
            call()
    live.close()

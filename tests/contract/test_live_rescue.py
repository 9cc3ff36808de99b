"""What every live store does for those who look after runs: waiting roles, moves, expiry, what was lost."""

from __future__ import annotations

import pytest

from app.clock import system_clock
from app.errors import ServerUnavailable
from app.live.memory import MemoryLive
from app.live.redis import RedisLive
from app.models.event import Place
from app.models.run import RunError, RunStatus
from app.ports import Ack, Live
from app.redis_client import RedisServer
from app.stack.servers import valkey_command
from tests.contract.test_live import DONE, LOG, OTHER, TTL, WORKER, live, new_run, started, tick, types
from tests.servers import free_port, running, wait_until

__all__ = ["live"]


def test_a_run_is_given_back_for_another_try(live: Live) -> None:
    started(live)
    assert live.retry("r1", "t1", 1, [LOG], code="timed_out", pause_ms=20) == Ack(True, 4)
    run = live.get("r1")
    assert run is not None
    assert (run.status, run.attempt, run.retries, run.losses) == (RunStatus.QUEUED, 2, 1, 0)
    assert live.events("r1")[-1].data == {"code": "timed_out", "inMs": 20}
    assert live.retry("r1", "t1", 1, [LOG], code="timed_out", pause_ms=20) == Ack(True, 4), "the answer was lost"
    wait_until(lambda: live.queued("worker", 10) == ["r1"], seconds=5, what="the pause is over")


def test_a_moved_run_is_claimed_by_the_other_role_alone(live: Live) -> None:
    live.create(new_run())
    moved = live.move("r1", attempt=1, role="gpu", reason="no_workers")
    assert moved == live.get("r1")
    assert live.events("r1")[-1].data == {"from": "worker", "to": "gpu", "reason": "no_workers"}
    assert (live.queued("worker", 10), live.queued("gpu", 10)) == ([], ["r1"])
    assert live.claim("r1", worker=WORKER, token="t1", ttl_ms=TTL).refusal == "other_role"
    assert live.move("r1", attempt=1, role="gpu", reason="again") is None
    assert live.move("none", attempt=1, role="gpu", reason="again") is None


def test_a_run_that_waits_can_be_failed_and_one_that_runs_cannot(live: Live) -> None:
    error = RunError("queue_timeout", 'no worker of "worker" came', 1)
    live.create(new_run())
    assert live.fail_queued("r1", attempt=2, error=error) is None
    failed = live.fail_queued("r1", attempt=1, error=error)
    assert failed == live.get("r1")
    assert failed is not None
    assert (failed.status, failed.error, types(live)[-1]) == (RunStatus.FAILED, error, "run.failed")
    started(live, "r2")
    assert live.fail_queued("r2", attempt=1, error=error) is None


def test_runs_that_nobody_started_in_time_are_listed_and_not_started_any_more(live: Live) -> None:
    now = system_clock()
    live.create(new_run("late", expires_ms=now - 2))
    live.create(new_run("later", expires_ms=now - 1))
    live.create(new_run("in-time", expires_ms=now + TTL))
    live.create(new_run("never"))
    started(live, "running", expires_ms=now + TTL)
    assert live.expired(10) == ["late", "later"]
    assert live.expired(1) == ["late"]
    assert live.claim("late", worker=WORKER, token="t1", ttl_ms=TTL).refusal == "expired"
    live.move("later", attempt=1, role="gpu", reason="no_workers")
    assert live.expired(10) == ["late", "later"], "a move gives no more time"
    live.cancel("late")
    assert live.expired(10) == ["later"]


def test_queued_can_be_asked_for_those_that_have_waited_long(live: Live) -> None:
    live.create(new_run())
    assert live.queued("worker", 10, waited_ms=TTL) == []
    wait_until(lambda: live.queued("worker", 10, waited_ms=20) == ["r1"], seconds=5, what="it has waited")


def test_the_roles_that_runs_wait_for_are_known(live: Live) -> None:
    assert live.waiting_roles() == []
    live.create(new_run("r1"))
    live.create(new_run("r2", target_role="gpu", not_before_ms=system_clock() + TTL))
    assert live.waiting_roles() == ["gpu", "worker"]
    live.claim("r1", worker=WORKER, token="t1", ttl_ms=TTL)
    assert live.waiting_roles() == ["gpu"]
    live.hand_back("r1", "t1", 1, [], reason="draining", role="api")
    assert live.waiting_roles() == ["api", "gpu"]


def test_what_is_behind_the_ledger_and_what_is_open_can_be_asked_for(live: Live) -> None:
    live.create(new_run("queued"))
    live.create(new_run("elsewhere", target_role="gpu"))
    started(live, "running")
    started(live, "ended")
    live.finish("ended", "t1", 1, [], DONE)
    revs = {"queued": 1, "none": 0, "running": 3, "ended": 3, "nothing": 1}
    assert live.behind(revs) == ["none", "running", "nothing"]
    assert live.behind({}) == []
    assert sorted(live.open_runs()) == ["elsewhere", "queued", "running"]


def test_a_dropped_run_leaves_nothing_and_can_be_made_anew(live: Live) -> None:
    accepted = started(live)
    live.drop("r1")
    live.drop("none")
    assert (live.get("r1"), live.events("r1"), live.open_runs(), live.changed(10)) == (None, [], [], [])
    assert live.append("r1", "t1", 1, [LOG]) == Ack(False)
    tick()
    assert live.create(accepted.with_(attempt=2, epoch=1), reason="live_state_lost")
    again = live.claim("r1", worker=OTHER, token="t2", ttl_ms=TTL).run
    assert again is not None
    assert (again.created_ms, again.epoch, again.attempt) == (accepted.created_ms, 1, 2)
    assert [event.place for event in live.events("r1")] == [Place(1, 1), Place(2, 1)]
    assert [event.place for event in live.events("r1", after=1)] == [Place(2, 1)]
    live.finish("r1", "t2", 1, [], DONE)
    live.drop("r1")
    assert live.get("r1") is not None, "an end is not dropped"


def test_it_is_trusted_when_somebody_said_so(live: Live) -> None:
    assert not live.trusted()
    live.trust()
    assert live.trusted()


def test_memory_that_was_lost_is_not_trusted() -> None:
    live = MemoryLive(system_clock)
    live.create(new_run())
    live.trust()
    live.lose()
    assert not live.trusted()
    assert live.get("r1") is None


@pytest.mark.integration
def test_a_server_that_was_emptied_or_started_again_is_not_trusted(tmp_path_factory: pytest.TempPathFactory) -> None:
    port, folder = free_port(), tmp_path_factory.mktemp("valkey")
    url = f"redis://127.0.0.1:{port}/0"
    live, raw = RedisLive(url, key_prefix="p:", socket_timeout_s=2), RedisServer(url, socket_timeout_s=2)
    with running(valkey_command(port, folder), port, folder / "server.log"):
        live.create(new_run())
        live.trust()
        assert live.trusted()
        with raw.errors():
            raw.client.flushall()
        assert not live.trusted()
        live.create(new_run())
        live.trust()
    with running(valkey_command(port, folder), port, folder / "server.log"):
        wait_until(lambda: answers(live), seconds=10, what="it has read what was on disk")
        assert live.get("r1") is not None
        assert not live.trusted()
    live.close()
    raw.close()


def answers(live: Live) -> bool:
    try:
        live.ping()
    except ServerUnavailable:
        return False
    return True

"""What every bell does, in memory and by Redis' pub/sub; then what only a connection can do: break."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from app.clock import system_clock
from app.errors import ServerUnavailable
from app.live.bell import MemoryBell, RedisBell
from app.live.memory import MemoryLive
from app.live.redis import RedisLive
from app.ports import Bell, Live
from app.redis_client import RedisServer
from app.stack.servers import valkey_command
from tests.contract.test_live import LOG, started
from tests.servers import free_port, running, wait_until

SOON = 5.0
"""Longer than anything that is to happen takes."""


@pytest.fixture(params=["memory", "redis"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Live, Bell]]:
    if request.param == "memory":
        live = MemoryLive(system_clock)
        yield live, MemoryBell(live)
        return
    with on_redis(request.getfixturevalue("valkey"), request.getfixturevalue("key_prefix")) as both:
        yield both


@contextmanager
def on_redis(url: str, prefix: str = "x:", *, timeout_s: float = 2) -> Iterator[tuple[RedisLive, RedisBell]]:
    live = RedisLive(url, key_prefix=prefix, socket_timeout_s=timeout_s)
    bell = RedisBell(url, key_prefix=prefix, socket_timeout_s=timeout_s)
    try:
        yield live, bell
    finally:
        bell.close()
        live.close()


class Batches:
    """Appends an event to a started run at each call."""

    def __init__(self, live: Live, run_id: str = "r1") -> None:
        self.live, self.run_id, self.batch = live, run_id, 0
        started(live, run_id)

    def __call__(self) -> None:
        self.batch += 1
        assert self.live.append(self.run_id, "t1", self.batch, [LOG]).ok


# --- every bell --------------------------------------------------------------------------------------------------


def test_it_rings_for_an_event_and_then_is_silent(pair: tuple[Live, Bell]) -> None:
    live, bell = pair
    append = Batches(live)
    with bell.watch("r1") as wait:
        assert wait(0.01) is False
        for _ in range(3):
            append()
            assert wait(SOON) is True
        assert wait(0.01) is False


def test_it_rings_for_each_kind_of_event(pair: tuple[Live, Bell]) -> None:
    live, bell = pair
    with bell.watch("r1") as wait:
        started(live)
        assert wait(SOON)
        live.hand_back("r1", "t1", 1, [], reason="draining")
        assert wait(SOON)
        live.cancel("r1")
        assert wait(SOON)


def test_what_happened_before_the_wait_is_not_lost(pair: tuple[Live, Bell]) -> None:
    live, bell = pair
    append = Batches(live)
    with bell.watch("r1") as wait:
        append()
        append()
        wait_until(lambda: wait(0.01), seconds=SOON, what="it rang")


def test_only_watchers_of_that_run_hear_it(pair: tuple[Live, Bell]) -> None:
    live, bell = pair
    append = Batches(live)
    with bell.watch("r1") as one, bell.watch("r1") as two, bell.watch("r2") as other:
        append()
        assert one(SOON)
        assert two(SOON)
        assert other(0.01) is False


def test_a_watcher_that_leaves_does_not_silence_the_others(pair: tuple[Live, Bell]) -> None:
    live, bell = pair
    append = Batches(live)
    with bell.watch("r1") as stays:
        with bell.watch("r1"):
            pass
        append()
        assert stays(SOON)
    with bell.watch("r1") as again:
        append()
        assert again(SOON)


def test_closing_wakes_whoever_waits(pair: tuple[Live, Bell]) -> None:
    _, bell = pair
    with bell.watch("r1") as wait, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait, 60)
        bell.close()
        assert waiting.result(SOON)


def test_readers_that_come_and_go_read_every_event_once(pair: tuple[Live, Bell]) -> None:
    live, bell = pair
    append = Batches(live)

    def follow(times: int) -> list[int]:
        seqs: list[int] = []
        while len(seqs) < 32:
            with bell.watch("r1") as wait:
                for _ in range(times):
                    seqs += [event.seq for event in live.events("r1", after=len(seqs), limit=5)]
                    if len(seqs) < 32:
                        wait(0.05)
        return seqs

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(follow, times) for times in (1, 2, 5, 1000)]
        for _ in range(30):
            append()
        assert [reader.result(SOON) for reader in readers] == [list(range(1, 33))] * 4


# --- the connection ----------------------------------------------------------------------------------------------


@pytest.fixture
def server(valkey: str) -> Iterator[RedisServer]:
    server = RedisServer(valkey, socket_timeout_s=2)
    yield server
    server.close()


def subscriptions(server: RedisServer, prefix: str) -> list[str]:
    with server.errors():
        return sorted(server.client.pubsub_channels(f"{prefix}*"))


def test_it_is_subscribed_to_watched_runs_alone_over_one_connection(
    valkey: str, key_prefix: str, server: RedisServer
) -> None:
    with on_redis(valkey, key_prefix) as (_, bell):
        assert subscriptions(server, key_prefix) == []
        with bell.watch("r1"), bell.watch("r1"):
            with bell.watch("r2"):
                channels = [f"{key_prefix}run.events.r1", f"{key_prefix}run.events.r2"]
                assert subscriptions(server, key_prefix) == channels
                with server.errors():
                    assert len(server.client.client_list(_type="pubsub")) == 1
            wait_until(lambda: subscriptions(server, key_prefix) == channels[:1], seconds=SOON, what="r2 is left")
        wait_until(lambda: subscriptions(server, key_prefix) == [], seconds=SOON, what="r1 is left")


def test_a_cut_connection_rings_and_is_mended(valkey: str, key_prefix: str, server: RedisServer) -> None:
    with on_redis(valkey, key_prefix) as (live, bell):
        append = Batches(live)
        with bell.watch("r1") as one, bell.watch("r2") as two:
            for _ in range(3):
                with server.errors():
                    assert server.client.client_kill_filter(_type="pubsub") == 1
                append()
                assert one(SOON), "events may have passed unheard"
                assert two(SOON)
                one(0.2)
                append()
                assert one(SOON), "it hears again"
                assert two(0.01) is False


def test_a_restarted_server_rings_and_is_heard_again(tmp_path: Path) -> None:
    port = free_port()
    command, log = valkey_command(port, tmp_path), tmp_path / "server.log"
    with ExitStack() as stack:
        first = stack.enter_context(running(command, port, log))
        live, bell = stack.enter_context(on_redis(f"redis://127.0.0.1:{port}/0", timeout_s=1))
        append = Batches(live)
        with bell.watch("r1") as wait:
            first.terminate()
            first.wait(5)
            wait_until(lambda: _away(bell), seconds=SOON, what="the loss is noticed")
            with bell.watch("r1") as late, bell.watch("r2") as later:
                assert late(0), "Redis is away: read the log at once and see"
                assert later(0)
                with running(command, port, log):
                    assert wait(SOON), "the new subscription is in force"
                    assert late(SOON)
                    assert later(SOON)
                    append()
                    assert wait(SOON)


def test_a_frozen_server_is_noticed_and_rings_when_it_thaws(tmp_path: Path) -> None:
    port = free_port()
    with (
        running(valkey_command(port, tmp_path), port, tmp_path / "server.log") as process,
        on_redis(f"redis://127.0.0.1:{port}/0", timeout_s=0.3) as (live, bell),
    ):
        append = Batches(live)
        with bell.watch("r1") as wait:
            os.kill(process.pid, signal.SIGSTOP)
            try:
                with bell.watch("r2") as late:
                    assert late(0), "a reader is not kept waiting"
                with pytest.raises(ServerUnavailable):
                    append()
                wait_until(lambda: _away(bell), seconds=SOON, what="the silence is noticed")
            finally:
                os.kill(process.pid, signal.SIGCONT)
            assert wait(SOON)
            wait_until(lambda: _heard(append, wait), seconds=SOON, what="it hears again")


def test_a_server_that_never_was_there_keeps_nobody_waiting() -> None:
    with on_redis(f"redis://127.0.0.1:{free_port()}/0") as (_, bell), bell.watch("r1") as wait:
        assert wait(SOON)


def test_its_thread_begins_with_the_first_watcher_and_ends_with_the_bell(valkey: str, key_prefix: str) -> None:
    def threads() -> int:
        return sum(thread.name == "bell" for thread in threading.enumerate())

    with on_redis(valkey, key_prefix) as (_, bell):
        assert threads() == 0
        with bell.watch("r1"), bell.watch("r2"):
            assert threads() == 1
    assert threads() == 0


def _away(bell: RedisBell) -> bool:
    """Whether a new reader is told at once that nothing is in force."""
    with bell.watch("r3") as wait:
        return wait(0)


def _heard(append: Callable[[], None], wait: Callable[[float], bool]) -> bool:
    append()
    return wait(0.2)

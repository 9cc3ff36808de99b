"""What only a real server can do to a register: be emptied, full, frozen, away; and how little it must cost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from app.errors import ServerUnavailable
from app.models.heartbeat import Heartbeat
from app.models.json_value import loads
from app.register.redis import RedisRegister
from app.roles import fold
from app.stack.servers import valkey_command
from tests.contract.registers import MARGIN_MS, TTL_MS, UNKNOWN_MS, RedisBench, heartbeat, redis_bench
from tests.servers import free_port, running, wait_until


@pytest.fixture
def bench(valkey: str, key_prefix: str) -> Iterator[RedisBench]:
    yield from redis_bench(valkey, key_prefix)


def forget(bench: RedisBench) -> None:
    """Empty the server, as far as it is ours."""
    keys = list(bench.client.scan_iter(f"{bench.prefix}*"))
    assert keys
    bench.client.delete(*keys)


def test_heartbeats_are_published(bench: RedisBench) -> None:
    with closing(bench.client.pubsub(ignore_subscribe_messages=True)) as listener:
        listener.subscribe(f"{bench.prefix}worker.heartbeat")
        listener.get_message(timeout=5)
        bench.register.beat(heartbeat("a", draining=True))
        message = None
        while message is None:
            message = listener.get_message(timeout=5)
        assert Heartbeat.model_validate(loads(message["data"])) == heartbeat("a", draining=True)


def test_all_keys_are_under_the_prefix_and_none_is_left_when_everybody_has_left(bench: RedisBench) -> None:
    for ident in "abc":
        bench.register.beat(heartbeat(ident, nodes=(f"x/{ident}",)))
    for ident in "abc":
        bench.register.leave(ident)
    assert list(bench.client.scan_iter(f"{bench.prefix}*")) == [f"{bench.prefix}register:pulse"]


def test_beats_alone_forget_the_dead_though_nobody_asks(bench: RedisBench) -> None:
    bench.register.beat(heartbeat("dead"))
    for _ in range(4):
        bench.advance(TTL_MS // 3)
        bench.register.beat(heartbeat("alive"))
    assert bench.client.zrange(f"{bench.prefix}register:seen", 0, -1) == ["alive"]


# --- emptied -----------------------------------------------------------------------------------------------------


def test_a_reader_that_knew_the_server_before_it_was_emptied_answers_unknown(bench: RedisBench) -> None:
    bench.register.beat(heartbeat("a"))
    with closing(bench.process()) as reader, closing(bench.process()) as newcomer:
        assert reader.snapshot().known
        forget(bench)
        for _ in range(2):
            snapshot = reader.snapshot()
            assert not snapshot.known
            assert snapshot.quiet_until_ms > snapshot.at_ms
        # To whoever comes now for the first time, this is a first start like any other.
        assert newcomer.snapshot().known


def test_the_first_beat_of_an_older_process_on_an_emptied_server_is_a_gap(bench: RedisBench) -> None:
    bench.register.beat(heartbeat("a"))
    with closing(bench.process()) as other:
        assert other.snapshot().known
        forget(bench)
        assert bench.register.beat(heartbeat("a")).gap
        assert not other.snapshot().known
        assert not bench.register.snapshot().known
        bench.advance(UNKNOWN_MS + MARGIN_MS)
        assert other.snapshot().known
        assert bench.register.snapshot().roles == fold([heartbeat("a")])


def test_a_process_that_starts_on_an_emptied_server_does_not_hide_the_gap(bench: RedisBench) -> None:
    bench.register.beat(heartbeat("old"))
    with closing(bench.process()) as new, closing(bench.process()) as reader:
        reader.snapshot()
        forget(bench)
        assert not new.beat(heartbeat("new")).gap
        assert not reader.snapshot().known
        assert not new.snapshot().known
        bench.advance(UNKNOWN_MS + MARGIN_MS)
        assert reader.snapshot().known
        # The gap was noted when the reader saw it; the others who knew the server before do not begin it again.
        assert not bench.register.beat(heartbeat("old")).gap
        assert bench.register.snapshot().known


# --- full, frozen, away ------------------------------------------------------------------------------------------


def test_heartbeat_goodbye_and_questions_work_when_memory_is_full(bench: RedisBench) -> None:
    bench.register.beat(heartbeat("a"))
    bench.client.config_set("maxmemory", 1)
    try:
        bench.register.beat(heartbeat("b", nodes=("x/y",)))
        bench.register.leave("a")
        assert bench.register.snapshot().roles == fold([heartbeat("b", nodes=("x/y",))])
        assert len(bench.register.instances()) == 1
    finally:
        bench.client.config_set("maxmemory", 0)


def test_a_server_that_is_away_is_said_to_be(key_prefix: str) -> None:
    url = f"redis://:secret@127.0.0.1:{free_port()}/0"
    times = {"interval_ms": 100, "ttl_ms": 300, "lease_ttl_ms": 300}
    with closing(RedisRegister(url, key_prefix=key_prefix, socket_timeout_s=1, **times)) as register:
        for call in (
            register.ping, register.snapshot, register.instances,
            lambda: register.beat(heartbeat()), lambda: register.leave("a"),
        ):  # fmt: skip
            with pytest.raises(ServerUnavailable) as caught:
                call()
            assert caught.value.code == "redis_unavailable"
            assert "secret" not in str(caught.value)


@pytest.mark.integration
def test_a_frozen_server_is_a_pause_and_no_death(tmp_path: Path, key_prefix: str) -> None:
    port, ttl_ms = free_port(), 1000
    url, times = f"redis://127.0.0.1:{port}/0", {"interval_ms": 200, "ttl_ms": ttl_ms, "lease_ttl_ms": ttl_ms}
    with (
        running(valkey_command(port, tmp_path), port, tmp_path / "log") as server,
        closing(RedisRegister(url, key_prefix=key_prefix, socket_timeout_s=0.25, **times)) as register,
    ):
        now = register.beat(heartbeat("a")).server_ms
        began = time.monotonic()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(ServerUnavailable):
                # It stays in the server's socket and will be read long after its sender gave up.
                register.beat(heartbeat("ghost"), expected_ms=now)
            time.sleep(max(0.0, 1.5 * ttl_ms / 1000 - (time.monotonic() - began)))
        finally:
            os.kill(server.pid, signal.SIGCONT)
        wait_until(lambda: answers(register), seconds=10, what="the server answers again")
        snapshot = register.snapshot()
        assert not snapshot.known
        assert snapshot.quiet_until_ms >= snapshot.at_ms
        assert [instance.heartbeat.instance_id for instance in register.instances()] == ["a"]
        assert register.beat(heartbeat("a")).gap

        def known() -> bool:
            register.beat(heartbeat("a"))
            return register.snapshot().known

        wait_until(known, seconds=10, what="the register is known again")
        assert register.snapshot().roles == fold([heartbeat("a")])


def answers(register: RedisRegister) -> bool:
    try:
        register.ping()
    except ServerUnavailable:
        return False
    return True


def test_by_the_servers_own_clock_an_instance_that_fell_silent_is_gone(valkey: str, key_prefix: str) -> None:
    with closing(
        RedisRegister(valkey, key_prefix=key_prefix, socket_timeout_s=5, interval_ms=50, ttl_ms=400, lease_ttl_ms=400)
    ) as register:
        register.beat(heartbeat("dead"))

        def alone() -> bool:
            register.beat(heartbeat("alive"))
            snapshot = register.snapshot()
            return snapshot.known and snapshot.roles == fold([heartbeat("alive")])

        wait_until(alone, seconds=20, what="only the living instance is counted")


# --- cost --------------------------------------------------------------------------------------------------------


def test_a_snapshot_costs_the_same_however_many_instances_there_are(bench: RedisBench) -> None:
    def bytes_of_one() -> int:
        before = int(bench.client.info("stats")["total_net_output_bytes"])
        bench.register.snapshot()
        return int(bench.client.info("stats")["total_net_output_bytes"]) - before

    many = tuple(f"acme/handler-{number}" for number in range(100))
    bench.register.beat(heartbeat("first", nodes=many))
    bytes_of_one()
    small = bytes_of_one()
    for number in range(400):
        bench.register.beat(heartbeat(str(number), nodes=many))
    assert bytes_of_one() < small + 200
    assert bench.register.snapshot().roles["worker"].count == 401


def test_a_whole_fleet_that_dies_at_once_is_gone_with_the_first_question(bench: RedisBench) -> None:
    for number in range(500):
        bench.register.beat(heartbeat(str(number)))
    for _ in range(3):
        bench.advance(TTL_MS // 3)
        bench.register.beat(heartbeat("alive"))
    assert bench.register.snapshot().roles == fold([heartbeat("alive")])
    assert len(bench.register.instances()) == 1

"""How Rolecall reaches Redis: bounded waits, errors of ours, new connections after a fork, clear refusals."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from app.errors import OutOfMemory, ServerUnavailable, SettingError
from app.redis_client import MAX_CONNECTIONS, RedisServer, connect
from app.redis_scripts import FRESH_S, KEPT_CONNECTIONS
from app.stack.servers import valkey_command
from tests.servers import free_port, running, wait_until

ECHO = "#!lua flags=allow-oom\nreturn {KEYS[1], ARGV[1], 1}"


@pytest.fixture
def server(valkey: str) -> Iterator[RedisServer]:
    with closing(RedisServer(valkey, socket_timeout_s=5)) as found:
        yield found


class Fake:
    """A server that answers commands by name; ``None`` keeps its client waiting."""

    def __init__(self, **answers: bytes | None) -> None:
        self.answers: dict[str, bytes | None] = {"PING": b"+PONG\r\n", "CLIENT": b"+OK\r\n"} | answers
        self.heard: list[str] = []
        self.port = 0

    def serve(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                with listener.accept()[0] as peer:
                    while command := peer.recv(4096).split(b"\r\n"):
                        if len(command) < 3:
                            break
                        name = command[2].decode()
                        self.heard.append(name)
                        if (answer := self.answers.get(name)) is not None:
                            peer.sendall(answer)


@contextmanager
def answering(**answers: bytes | None) -> Iterator[Fake]:
    """Run a fake server until the block ends; close every client of it inside."""
    fake = Fake(**answers)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fake.port = listener.getsockname()[1]
        thread = threading.Thread(target=fake.serve, args=(listener,))
        thread.start()
        try:
            yield fake
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(20)
            assert not thread.is_alive()


def info(**fields: object) -> bytes:
    """Return the wire form of INFO's answer."""
    text = "# Server\r\n" + "".join(f"{name}:{value}\r\n" for name, value in fields.items())
    return f"${len(text)}\r\n{text}\r\n".encode()


# --- scripts -----------------------------------------------------------------------------------------------------


def test_a_script_runs_also_after_the_server_forgot_it(server: RedisServer) -> None:
    echo = server.script(ECHO)
    assert echo(["key"], ["é"]) == ["key", "é", 1]
    assert echo(["key"], [7]) == ["key", "7", 1]
    server.client.script_flush()
    assert echo(["key"], [1.5]) == ["key", "1.5", 1]


def test_many_threads_share_few_connections_and_each_gets_its_own_answers(server: RedisServer) -> None:
    echo = server.script(ECHO)

    def ask(number: int) -> bool:
        return bool(echo([f"key{number}"], [number]) == [f"key{number}", str(number), 1])

    with ThreadPoolExecutor(3 * MAX_CONNECTIONS) as threads:
        assert all(threads.map(ask, range(2_000)))
    # All of them, but for those that scripts keep, are the pool's again.
    pool = server.client.connection_pool
    assert all(pool.get_connection() for _ in range(MAX_CONNECTIONS - KEPT_CONNECTIONS))


def test_a_connection_that_still_owes_an_answer_is_not_used(server: RedisServer) -> None:
    echo = server.script(ECHO)
    echo(["key"], ["first"])
    wire = server.wires().take()
    wire.connection.send_command("PING")
    server.wires().put(wire)
    wire.used_at -= FRESH_S
    wait_until(wire.connection.can_read, seconds=5, what="the answer is there")
    assert echo(["key"], ["second"]) == ["key", "second", 1]


def test_what_was_sent_is_answered_by_the_way_or_when_asked_for(server: RedisServer) -> None:
    echo = server.script(ECHO)
    unknown_yet = echo.send(["key"], ["0"])
    assert unknown_yet.get() == ["key", "0", 1], "also where the server does not know the script yet"
    first, second = echo.send(["key"], ["1"]), echo.send(["key"], ["2"])
    assert echo(["key"], ["3"]) == ["key", "3", 1]
    assert first.known()
    assert second.known()
    third = echo.send(["key"], ["4"])
    assert not third.known()
    assert [reply.get() for reply in (third, second, first)] == [["key", n, 1] for n in ("4", "2", "1")]
    assert third.get() == ["key", "4", 1]
    assert echo(["key"], ["5"]) == ["key", "5", 1]


def test_many_threads_send_and_each_reply_is_its_own(server: RedisServer) -> None:
    echo = server.script(ECHO)
    echo(["key"], ["x"])

    def ask(number: int) -> bool:
        sent = echo.send([f"key{number}"], [number])
        called = echo([f"key{number}"], [-number]) if number % 3 else None
        answers = sent.get(), called
        return answers == ([f"key{number}", str(number), 1], [f"key{number}", str(-number), 1] if number % 3 else None)

    with ThreadPoolExecutor(3 * KEPT_CONNECTIONS) as threads:
        assert all(threads.map(ask, range(2_000)))
    pool = server.client.connection_pool
    assert all(pool.get_connection() for _ in range(MAX_CONNECTIONS - KEPT_CONNECTIONS))


def test_a_refusal_of_what_was_sent_is_told_to_whoever_asks_for_it_alone(server: RedisServer) -> None:
    echo, refuse = server.script(ECHO), server.script("return redis.error_reply('ERR this is why')")
    with pytest.raises(ServerUnavailable):
        refuse()
    sent = refuse.send()
    assert echo(["key"], ["x"]) == ["key", "x", 1]
    with pytest.raises(ServerUnavailable, match="this is why"):
        sent.get()


def test_a_connection_that_is_lost_loses_the_reply_and_no_more(server: RedisServer) -> None:
    echo = server.script(ECHO)
    echo(["key"], ["x"])
    sent = echo.send(["key"], ["y"])
    wire = server.wires().take()
    wire.connection.disconnect()
    server.wires().put(wire)
    with pytest.raises(ServerUnavailable, match="lost before the answer"):
        sent.get()
    assert echo(["key"], ["z"]) == ["key", "z", 1]


def test_a_silent_server_costs_one_wait_for_what_was_sent() -> None:
    with (
        answering(INFO=info(redis_mode="standalone", redis_version="7.2.4"), EVALSHA=None) as frozen,
        closing(RedisServer(f"redis://127.0.0.1:{frozen.port}", socket_timeout_s=0.3)) as server,
    ):
        sent = server.script(ECHO).send(["key"], ["x"])
        bounded(sent.get, seconds=2)


def test_a_connection_is_not_lost_with_whoever_was_about_to_use_it(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo = server.script(ECHO)
    echo(["key"], ["x"])
    with monkeypatch.context() as ended:
        ended.setattr("app.redis_scripts.FRESH_S", 0)
        ended.setattr("app.redis_scripts._is_sound", Mock(side_effect=SystemExit))
        with pytest.raises(SystemExit):
            echo(["key"], ["x"])
    pool = server.client.connection_pool
    assert all(pool.get_connection() for _ in range(MAX_CONNECTIONS))


def test_what_redis_says_against_a_command_becomes_an_error_of_ours(server: RedisServer, key_prefix: str) -> None:
    with pytest.raises(ServerUnavailable, match="this is why"):
        server.script("return redis.error_reply('ERR this is why')")()
    server.client.set(f"{key_prefix}text", "x")
    with pytest.raises(ServerUnavailable, match="WRONGTYPE"), server.errors():
        server.client.lpush(f"{key_prefix}text", "x")


def test_a_full_server_is_told_from_one_that_is_away(server: RedisServer, key_prefix: str) -> None:
    write, echo = server.script("return redis.call('SET', KEYS[1], '1')"), server.script(ECHO)
    server.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(OutOfMemory):
            write([f"{key_prefix}key"])
        with pytest.raises(OutOfMemory), server.errors():
            server.client.set(f"{key_prefix}key", "1")
        assert echo(["key"], ["x"])
    finally:
        server.client.config_set("maxmemory", 0)
    write([f"{key_prefix}key"])


# --- frozen, restarted, away -------------------------------------------------------------------------------------


def bounded(call: Callable[[], object], *, seconds: float) -> None:
    began = time.monotonic()
    with pytest.raises(ServerUnavailable):
        call()
    assert time.monotonic() - began < seconds


@pytest.mark.integration
def loaded(url: str) -> None:
    """Wait until a server that listens has read what it stored; until then it refuses commands."""

    def answers() -> bool:
        with closing(RedisServer(url, socket_timeout_s=2)) as server, suppress(ServerUnavailable):
            server.ping()
            return True
        return False

    wait_until(answers, seconds=20, what="the server has loaded its data")


def test_a_frozen_server_costs_one_timeout_and_a_restarted_one_nothing(tmp_path: Path) -> None:
    port = free_port()
    url, command, log = f"redis://127.0.0.1:{port}/0", valkey_command(port, tmp_path), tmp_path / "log"
    with (
        closing(RedisServer(url, socket_timeout_s=0.4)) as known,
        closing(RedisServer(url, socket_timeout_s=0.4)) as new,
    ):
        echo = known.script(ECHO)
        with running(command, port, log) as process:
            echo(["key"], ["x"])
            os.kill(process.pid, signal.SIGSTOP)
            try:
                for call in (known.ping, lambda: echo(["key"], ["x"]), new.ping):
                    bounded(call, seconds=2)
            finally:
                os.kill(process.pid, signal.SIGCONT)
        bounded(known.ping, seconds=2)
        with running(command, port, log):
            loaded(url)
            # The first connection died with the server; nobody is told.
            echo(["key"], ["x"])
            echo(["key"], ["x"])
        with running(command, port, log):
            loaded(url)
            echo(["key"], ["x"])


def test_no_command_is_sent_twice() -> None:
    with (
        answering(INFO=info(redis_mode="standalone", redis_version="7.2.4"), EVALSHA=None) as late,
        closing(RedisServer(f"redis://127.0.0.1:{late.port}/0", socket_timeout_s=0.3)) as server,
    ):
        bounded(lambda: server.script("return 1")(), seconds=2)
        assert late.heard.count("EVALSHA") == 1


def test_nobody_at_home_is_told_without_the_password() -> None:
    with closing(RedisServer(f"redis://user:secret@127.0.0.1:{free_port()}/0", socket_timeout_s=1)) as away:
        with pytest.raises(ServerUnavailable) as caught:
            away.ping()
        assert caught.value.code == "redis_unavailable"
        assert "secret" not in str(caught.value)


def test_a_certificate_that_cannot_be_read_is_an_unavailable_server(valkey: str) -> None:
    url = valkey.replace("redis://", "rediss://") + "?ssl_ca_certs=/no/such/file"
    with closing(RedisServer(url, socket_timeout_s=1)) as server, pytest.raises(ServerUnavailable):
        server.ping()


# --- fork --------------------------------------------------------------------------------------------------------


def test_a_forked_child_makes_its_own_connection_and_leaves_the_parents_alone(server: RedisServer) -> None:
    mine = server.client.client_id()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.write(writing, str(server.client.client_id()).encode())
            server.close()
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as answer:
        theirs = int(answer.read())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert theirs != mine
    assert server.client.client_id() == mine


# --- addresses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1/prod",
        "redis://127.0.0.1:99999/0",
        "redis://127.0.0.1:port/0",
        "redis://127.0.0.1/0?no_such_option=1",
        "redis://127.0.0.1/0?socket_timeout=soon",
        "sentinel://127.0.0.1:26379",
        "sentinel://127.0.0.1:26379/",
        "sentinel://127.0.0.1:x/service",
        "sentinel://,/service",
        "sentinel://127.0.0.1/service/prod",
        "http://127.0.0.1/",
    ],
)
def test_an_address_that_cannot_be_read_is_told_at_start(url: str) -> None:
    with pytest.raises(SettingError, match=r"REDIS_URL.*Example: "):
        RedisServer(url, socket_timeout_s=1)


@pytest.mark.parametrize("url", ["redis://u:se#cret@h/0", "redis://u:se/cret@h/0", "redis://u:se?cret@h/0"])
def test_the_refusal_of_an_address_repeats_no_password(url: str) -> None:
    with pytest.raises(SettingError) as caught:
        connect(url, socket_timeout_s=1)
    assert "cret" not in str(caught.value)


def test_sentinels_are_asked_for_the_primary(valkey: str) -> None:
    host, port = valkey.removeprefix("redis://").removesuffix("/0").split(":")
    state = {"name": "main", "ip": host, "port": port, "flags": "master", "num-other-sentinels": "1"}
    words = [word for pair in state.items() for word in pair]
    answer = f"*1\r\n*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    with (
        answering(SENTINEL=answer.encode()) as sentinel,
        closing(
            RedisServer(f"sentinel://127.0.0.1:{free_port()},127.0.0.1:{sentinel.port}/main/0", socket_timeout_s=4)
        ) as server,
    ):
        assert server.script(ECHO)(["key"], ["x"]) == ["key", "x", 1]
        # The pool closes those that lead to who was the primary before, so each goes back to it.
        wire = server.wires().take()
        server.wires().put(wire)
        assert server.client.connection_pool.get_connection() is wire.connection
    assert "SENTINEL" in sentinel.heard


def test_sentinels_that_do_not_answer_are_an_unavailable_server() -> None:
    with (
        answering(SENTINEL=None) as frozen,
        closing(
            RedisServer(f"sentinel://127.0.0.1:{frozen.port},127.0.0.1:{free_port()}/main/0", socket_timeout_s=0.4)
        ) as server,
    ):
        bounded(server.ping, seconds=2)


# --- servers that will not do ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "version", "reason"),
    [
        ("cluster", "7.2.4", "names a Redis Cluster"),
        ("sentinel", "7.2.4", "names a Sentinel"),
        ("standalone", "6.2.14", r"version 6\.2\.14"),
    ],
)
def test_a_server_that_will_not_do_is_refused_with_the_reason(mode: str, version: str, reason: str) -> None:
    with (
        answering(INFO=info(redis_mode=mode, redis_version=version)) as fake,
        closing(RedisServer(f"redis://127.0.0.1:{fake.port}/0", socket_timeout_s=5)) as server,
        pytest.raises(SettingError, match=reason),
    ):
        server.ping()

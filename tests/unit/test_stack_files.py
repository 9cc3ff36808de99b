"""The parts around the supervisor: Procfile, log files, control files, ports, examples."""

from __future__ import annotations

import io
import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.client import Client, Refused
from app.errors import RolecallError, SettingError
from app.stack.console import Console, Log
from app.stack.control import AlreadyRunning, Control, NotRunning
from app.stack.examples import load_examples
from app.stack.ports import PortInUse, check_free, holder
from app.stack.procfile import choose, read_procfile
from app.stack.servers import mongo_command, valkey_command
from app.stack.supervisor import State, Status
from tests.servers import wait_until

# --- the Procfile ------------------------------------------------------------------------------------------------


def test_a_procfile_is_read_in_order_without_comments_and_blanks(tmp_path: Path) -> None:
    (tmp_path / "Procfile").write_text("# all\n\nredis: valkey --port 1\n  gpu-worker:  SERVICE_ROLE=gpu run : it \n")
    redis, worker = read_procfile(tmp_path / "Procfile")
    assert (redis.name, redis.command, redis.answers_for_a_role) == ("redis", "valkey --port 1", False)
    assert (worker.name, worker.command, worker.answers_for_a_role) == ("gpu-worker", "SERVICE_ROLE=gpu run : it", True)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("worker celery", r"Procfile, line 1: 'worker celery' is not `name: command`"),
        ("# x\nworker:", r"Procfile, line 2: 'worker:' is not"),
        ("a/b: run", r"'a/b: run' is not"),
        ("a: run\na: run", r"line 2: the name 'a' occurs twice"),
        ("# nothing", r"names no process"),
    ],
)
def test_a_fault_in_a_procfile_is_named_with_its_line(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "Procfile").write_text(text)
    with pytest.raises(SettingError, match=fault):
        read_procfile(tmp_path / "Procfile")


def test_a_missing_procfile_is_named_with_the_folder_it_was_looked_for_in(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=f"there is no Procfile in {tmp_path}"):
        read_procfile(tmp_path / "Procfile")


def test_only_the_chosen_processes_are_taken_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "Procfile").write_text("a: 1\nb: 2\nc: 3\n")
    entries = read_procfile(tmp_path / "Procfile")
    assert [entry.name for entry in choose(entries, ["c", "a"])] == ["a", "c"]
    assert choose(entries, []) == entries
    with pytest.raises(SettingError, match="no process 'd'; it has a, b, c"):
        choose(entries, ["a", "d"])


# --- console and logs --------------------------------------------------------------------------------------------


def test_lines_of_processes_stand_in_one_column_and_only_when_the_console_is_not_quiet() -> None:
    stream = io.StringIO()
    console = Console(stream, ["a", "longer"], colour=False)
    console.line("a", "one")
    console.quiet = True
    console.line("a", "two")
    console.say("ours")
    assert stream.getvalue() == "a      | one\nours\n"


def test_names_are_coloured_on_a_terminal_and_not_where_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Console(Terminal(), ["a", "b"]).tag("b") == "\x1b[33mb\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Console(Terminal(), ["a", "b"]).tag("b") == "b"


def test_a_log_gives_whole_lines_however_the_bytes_arrive(tmp_path: Path) -> None:
    log = Log(tmp_path / "log" / "a.log")
    assert log.feed(b"on") == []
    assert log.feed(b"e\r\ntwo\n\xc3") == ["one", "two"]
    assert log.feed(b"\xa9\n\xff\n") == ["é", "�"]
    assert log.feed(b"end") == []
    assert log.flush() == ["end"]
    assert log.flush() == []
    assert list(log.tail) == ["one", "two", "é", "�", "end"]
    log.close()
    assert (tmp_path / "log" / "a.log").read_bytes() == b"one\r\ntwo\n\xc3\xa9\n\xff\nend"


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    log = Log(tmp_path / "a.log")
    assert [len(line) for line in log.feed(b"x" * 70_000)] == [70_000]
    assert log.flush() == []
    log.close()


def test_a_full_log_is_set_aside_and_goes_on(tmp_path: Path) -> None:
    log = Log(tmp_path / "a.log", max_bytes=10)
    for word in (b"12345\n", b"67890\n", b"abcde\n"):
        log.feed(word)
    log.close()
    assert (tmp_path / "a.log").read_bytes() == b"abcde\n"
    assert (tmp_path / "a.log.1").read_bytes() == b"67890\n"


# --- control -----------------------------------------------------------------------------------------------------


def rows(**states: State) -> list[Status]:
    return [Status(name, state, 7, 1.0, 0) for name, state in states.items()]


def test_a_second_owner_of_a_data_folder_is_told_who_the_first_is(tmp_path: Path) -> None:
    with (
        Control(tmp_path).own("http://127.0.0.1:8000"),
        pytest.raises(AlreadyRunning, match=rf"already at http://127.0.0.1:8000: pid {os.getpid()} owns {tmp_path}"),
        Control(tmp_path).own("http://127.0.0.1:9000"),
    ):
        pass


def test_a_data_folder_is_free_again_after_its_owner(tmp_path: Path) -> None:
    for _ in range(2):
        with Control(tmp_path).own("http://127.0.0.1:8000"):
            Control(tmp_path).processes()
        with pytest.raises(NotRunning, match=f"no Rolecall runs in {tmp_path}"):
            Control(tmp_path).processes()


def test_processes_are_what_the_supervisor_last_published(tmp_path: Path) -> None:
    control = Control(tmp_path)
    with control.own("-"):
        assert Control(tmp_path).processes() == []
        control.publish(rows(a=State.RUNNING, b=State.WAITING))
        assert Control(tmp_path).processes() == rows(a=State.RUNNING, b=State.WAITING)


def test_stop_and_start_wait_until_the_supervisor_has_done_it(tmp_path: Path) -> None:
    control = Control(tmp_path)
    with control.own("-"):
        control.publish(rows(a=State.RUNNING, b=State.RUNNING))

        def obey(held: set[str], states: list[Status]) -> threading.Thread:
            def follow() -> None:
                wait_until(lambda: control.held() == held, seconds=10, what="the order is given")
                control.publish(states)

            thread = threading.Thread(target=follow)
            thread.start()
            return thread

        supervisor = obey({"a"}, rows(a=State.STOPPED, b=State.RUNNING))
        assert Control(tmp_path).stop(["a"], seconds=10) == rows(a=State.STOPPED)
        supervisor.join()
        supervisor = obey(set(), rows(a=State.RUNNING, b=State.RUNNING))
        assert Control(tmp_path).start(["a"], seconds=10) == rows(a=State.RUNNING)
        supervisor.join()


def test_what_is_not_done_in_time_is_said(tmp_path: Path) -> None:
    control = Control(tmp_path)
    with control.own("-"):
        control.publish(rows(a=State.STOPPING))
        with pytest.raises(RolecallError, match="not stopped after 0 s: a is stopping"):
            control.stop(["a"], seconds=0)


def test_only_known_processes_can_be_stopped_and_the_orders_end_with_the_supervisor(tmp_path: Path) -> None:
    control = Control(tmp_path)
    with pytest.raises(NotRunning):
        control.stop(["a"], seconds=0)
    with control.own("-"):
        control.publish(rows(a=State.STOPPED))
        with pytest.raises(NotRunning, match=r"no process '\.\./b'; there are a"):
            control.stop(["../b"], seconds=0)
        control.stop(["a"], seconds=0)
        assert control.held() == {"a"}
    with control.own("-"):
        assert control.held() == frozenset()


# --- ports -------------------------------------------------------------------------------------------------------


def test_a_port_in_use_is_named_with_its_holder_and_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert holder(port) == (os.getpid(), Path("/proc/self/comm").read_text().strip())
        with pytest.raises(PortInUse, match=rf"port {port} is in use by pid {os.getpid()} \(.+\); .+ set ADMIN_PORT"):
            check_free("127.0.0.1", port, "ADMIN_PORT")


def test_a_free_port_passes_and_an_address_of_another_machine_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    check_free("127.0.0.1", port, "ADMIN_PORT")
    assert holder(port) is None
    with pytest.raises(PortInUse, match=r"192\.0\.2\.1:\d+ cannot be listened on: .+; set ADMIN_PORT"):
        check_free("192.0.2.1", port, "ADMIN_PORT")


# --- examples ----------------------------------------------------------------------------------------------------


def api(answer: Callable[[httpx.Request], httpx.Response]) -> Client:
    return Client("http://admin", transport=httpx.MockTransport(answer))


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    (tmp_path / "deployments").mkdir()
    (tmp_path / "a.flowdsl.json").write_text("{}")
    (tmp_path / "b.flowdsl.yaml").write_text("flowdsl: 1.0.0")
    (tmp_path / "README.md").write_text("no flow")
    (tmp_path / "deployments" / "one.json").write_text(json.dumps({"id": "first", "variants": []}))
    (tmp_path / "deployments" / "two.json").write_text(json.dumps({"variants": []}))
    return tmp_path


def test_examples_are_imported_published_and_deployed(examples: Path) -> None:
    calls: list[tuple[Any, ...]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append((request.method, str(request.url), request.headers["Content-Type"]))
        return httpx.Response(201, json={"flows": [{}, {}]})

    with api(answer) as client:
        loaded = load_examples(client, examples)
    assert (loaded.flows, loaded.made, loaded.there) == (4, 2, 0)
    assert calls == [
        ("POST", "http://admin/api/v1/flows/import?publish=true", "application/json"),
        ("POST", "http://admin/api/v1/flows/import?publish=true", "application/yaml"),
        ("PUT", "http://admin/api/v1/deployments/first", "application/json"),
        ("PUT", "http://admin/api/v1/deployments/two", "application/json"),
    ]


def test_a_deployment_that_is_there_is_left_alone(examples: Path) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "PUT":
            return httpx.Response(409, json={"code": "rev_conflict", "detail": "is at rev 3"})
        return httpx.Response(200, json={"flows": [{}]})

    with api(answer) as client:
        loaded = load_examples(client, examples)
    assert (loaded.made, loaded.there) == (0, 2)


def test_any_other_refusal_of_an_example_is_an_error(examples: Path) -> None:
    answer = httpx.Response(400, json={"code": "bad_request", "detail": "no"})
    with api(lambda _: answer) as client, pytest.raises(Refused, match="no"):
        load_examples(client, examples)


# --- the servers -------------------------------------------------------------------------------------------------


def test_a_missing_embedded_server_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("app.stack.servers.importlib.util.find_spec", lambda _: None)
    for command in (valkey_command, mongo_command):
        with pytest.raises(SettingError, match="set REDIS_URL and MONGO_URL"):
            command(1, tmp_path)

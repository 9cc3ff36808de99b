"""``rolecall up`` from outside, with a Procfile of tiny processes. The real ones are in ``tests/e2e``."""

from __future__ import annotations

import io
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.config import load_settings
from app.errors import SettingError
from app.stack import opening
from app.stack.ports import PortInUse
from app.stack.up import up
from tests.servers import free_port, wait_until
from tests.stack import Up


@pytest.fixture
def ended() -> Iterator[ExitStack]:
    """Ends every ``Up`` that a test has left running."""
    with ExitStack() as stack:
        yield stack


def start(ended: ExitStack, folder: Path, procfile: str, *words: str, **environ: str) -> Up:
    (folder / "Procfile").write_text(procfile)
    it = Up(folder, folder / "data", *words, **environ)

    def end() -> None:
        if it.process.poll() is None:
            it.process.terminate()
        it.process.wait(15)

    ended.callback(end)
    return it


TWO = "one: sleep 600\ntwo: sleep 600\n"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_runs_the_procfile_until_it_is_asked_to_stop(ended: ExitStack, tmp_path: Path, how: signal.Signals) -> None:
    it = start(ended, tmp_path, TWO)
    it.until("rolecall stop two")
    ready = [line.split() for line in it.said.splitlines() if " ready " in line]
    assert {(line[0], line[2]) for line in ready} == {("one", "pid"), ("two", "pid")}
    assert it.stop(how) == 0
    assert "Stopped in " in it.said


def test_stop_start_and_ps_reach_it(ended: ExitStack, tmp_path: Path) -> None:
    it = start(ended, tmp_path, TWO)
    it.until("Ctrl-C stops everything")
    down = it.rolecall("stop", "two")
    assert (down.returncode, down.stdout.splitlines()[1].split()[:3]) == (0, ["two", "stopped", "-"])
    assert [row.split()[1] for row in it.rolecall("ps").stdout.splitlines()[1:]] == ["running", "stopped"]
    up_again = it.rolecall("start", "two")
    assert (up_again.returncode, up_again.stdout.splitlines()[1].split()[:2]) == (0, ["two", "running"])


def test_a_process_that_died_is_named_with_the_way_to_keep_it_down(ended: ExitStack, tmp_path: Path) -> None:
    it = start(ended, tmp_path, TWO)
    it.until("Ctrl-C stops everything")
    [two] = [line for line in it.said.splitlines() if line.split()[:2] == ["two", "ready"]]
    os.kill(int(two.split()[3]), signal.SIGKILL)
    it.until("two | died by SIGKILL; starts again in 0.5 s. To keep it down: ")
    wait_until(lambda: "running" in it.rolecall("ps").stdout.splitlines()[2], seconds=20, what="it runs again")


def test_run_twice_it_says_who_has_the_data_folder(ended: ExitStack, tmp_path: Path) -> None:
    it = start(ended, tmp_path, TWO)
    it.until("Ctrl-C stops everything")
    second = it.rolecall("up")
    assert second.returncode == 1
    assert f"already at http://127.0.0.1:{it.environ['ADMIN_PORT']}: pid {it.process.pid}" in second.stderr


def test_a_second_ctrl_c_kills_at_once(ended: ExitStack, tmp_path: Path) -> None:
    (tmp_path / "stubborn.py").write_text(
        "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('here', flush=True)\ntime.sleep(600)"
    )
    it = start(ended, tmp_path, f"one: {sys.executable} -IS stubborn.py\n", STOP_DEADLINE_S="600")
    it.until("Ctrl-C stops everything")
    wait_until(lambda: (tmp_path / "data/log/one.log").read_text() == "here\n", seconds=20, what="it is stubborn")
    it.process.send_signal(signal.SIGINT)
    it.until("Ctrl-C again kills at once")
    assert it.stop() == 0


def test_with_only_the_named_processes_run(ended: ExitStack, tmp_path: Path) -> None:
    it = start(ended, tmp_path, TWO, "--only", "two")
    it.until("Ctrl-C stops everything")
    assert [row.split()[0] for row in it.rolecall("ps").stdout.splitlines()[1:]] == ["two"]
    assert "no process 'three'; it has one, two" in it.rolecall("up", "--only", "three").stderr


def test_outside_servers_are_named_without_their_secrets_and_not_started(ended: ExitStack, tmp_path: Path) -> None:
    it = start(
        ended, tmp_path, "redis: exit 1\nmongo: exit 1\none: sleep 600\n",
        REDIS_URL="redis://me:hush@127.0.0.1:1/0", MONGO_URL="mongodb://me:hush@127.0.0.1:2/db",
    )  # fmt: skip
    it.until("Ctrl-C stops everything")
    assert "yours  redis://127.0.0.1:1" in it.said
    assert "yours  mongodb://127.0.0.1:2" in it.said
    assert "hush" not in it.said
    assert it.stop() == 0


def test_with_every_server_elsewhere_there_is_nothing_to_start(tmp_path: Path) -> None:
    given = environ(tmp_path, "redis: exit 1\none: sleep 600\n", REDIS_URL="redis://127.0.0.1:1/0")
    with pytest.raises(SettingError, match="there is nothing to start"):
        up(load_settings(given), given, only=["redis"], folder=tmp_path, stream=io.StringIO())


def environ(folder: Path, procfile: str, **more: str) -> dict[str, str]:
    (folder / "Procfile").write_text(procfile)
    return {"PATH": os.environ["PATH"], "DATA_DIR": str(folder / "data"), **more}


def test_a_taken_port_is_told_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = str(holder.getsockname()[1])
        given = environ(tmp_path, "admin: touch began\n", ADMIN_PORT=port)
        with pytest.raises(PortInUse, match=rf"port {port} is in use by pid {os.getpid()}"):
            up(load_settings(given), given, only=[], folder=tmp_path, stream=io.StringIO())
    assert not (tmp_path / "began").exists()


def test_what_does_not_become_ready_ends_the_start_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "START_S", 1.0)
    given = environ(tmp_path, "one: sleep 600\nadmin: echo no module named x\n", ADMIN_PORT=str(free_port()))
    stream = io.StringIO()
    assert up(load_settings(given), given, only=[], folder=tmp_path, stream=stream) == 1
    assert "admin was not ready after 1 s; the end of" in stream.getvalue()
    assert "\n  no module named x" in stream.getvalue()
    assert "Stopped in" in stream.getvalue()

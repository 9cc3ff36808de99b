"""The supervisor against tiny real processes."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from app.stack.console import Console
from app.stack.procfile import Entry
from app.stack.supervisor import Backoff, State, Status, Supervisor
from tests.servers import wait_until

PYTHON = f"{sys.executable} -IS -c"
SLEEPER = "sleep 600"
QUICK = Backoff(first=0.05, longest=0.2, steady=30.0)


class Stack:
    """A supervisor with its console, driven until something is so."""

    def __init__(self, folder: Path, entries: list[Entry], *, grace: float = 5.0, backoff: Backoff = QUICK) -> None:
        self.folder = folder
        self.stream = io.StringIO()
        self.seen: list[tuple[Status, ...]] = []
        self.supervisor = Supervisor(
            entries,
            folder=folder,
            environ={**os.environ, "HERE": str(folder)},
            logs=folder / "log",
            console=Console(self.stream, [entry.name for entry in entries]),
            grace=lambda _: grace,
            backoff=backoff,
            changed=self.seen.append,
        )
        self.stopped = False

    def __getitem__(self, name: str) -> Status:
        return next(status for status in self.supervisor.status() if status.name == name)

    def until(self, ready: Callable[[], bool], what: str, seconds: float = 20) -> None:
        def tick() -> bool:
            self.supervisor.tick(0.01)
            return ready()

        wait_until(tick, seconds=seconds, what=what, step=0)

    def up(self, *names: str) -> None:
        self.supervisor.start(names)
        self.until(lambda: all(self.runs(name) for name in names), f"{names} run")

    def runs(self, name: str) -> bool:
        return bool(self.supervisor.status()) and self[name].state is State.RUNNING

    def stop(self) -> None:
        self.stopped = True
        self.supervisor.stop()


Make = Callable[..., Stack]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Make]:
    made: list[Stack] = []

    def make(**commands: str) -> Stack:
        options = {key: commands.pop(key) for key in ("grace", "backoff") if key in commands}
        entries = [Entry(name.replace("_", "-"), command) for name, command in commands.items()]
        made.append(Stack(tmp_path, entries, **options))  # type: ignore[arg-type] # the two options are no commands
        return made[-1]

    yield make
    for one in made:
        if not one.stopped:
            one.supervisor.stop(hurry=lambda: True)


def alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def children_of(pid: int | None) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def parent_with_child(*, ignoring: str = "pass") -> str:
    """A command that starts a child of its own, and then sleeps."""
    code = f"import signal,subprocess,time; {ignoring}; subprocess.Popen(['sleep', '600']); print('here', flush=True); "
    return f'{PYTHON} "{code}time.sleep(600)"'


def test_the_pause_doubles_up_to_the_longest_and_a_steady_life_resets_it() -> None:
    backoff, pauses = Backoff(), [0.0]
    for _ in range(8):
        pauses.append(backoff.after(pauses[-1], lived=1.0))
    assert pauses[1:] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff.after(30.0, lived=29.9) == 30.0
    assert backoff.after(30.0, lived=30.0) == 0.5


def test_nothing_runs_before_it_is_started(stack: Make) -> None:
    it = stack(one=SLEEPER)
    it.supervisor.tick(0.01)
    assert it["one"].state is State.STOPPED
    assert it["one"].pid is None


def test_assignments_quotes_and_variables_of_the_shell_work_and_the_pid_is_the_programs_own(stack: Make) -> None:
    it = stack(
        two=f"""GREETING="good day in $HERE" {PYTHON} 'import os,time
print(os.environ["GREETING"], os.getpid(), flush=True); time.sleep(600)'"""
    )
    it.up("two")
    it.until(lambda: bool(it.supervisor.tail("two")), "it speaks")
    assert it.supervisor.tail("two") == [f"good day in {it.folder} {it['two'].pid}"]


def test_a_process_that_dies_is_started_again_and_the_others_live_on(stack: Make) -> None:
    it = stack(one=SLEEPER, two=SLEEPER)
    it.up("one", "two")
    first, other = it["one"].pid, it["two"].pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    it.until(lambda: it["one"].restarts == 1 and it.runs("one"), "it runs again")
    assert it["one"].pid != first
    assert it["two"] == next(status for status in it.seen[-1] if status.name == "two")
    assert it["two"].pid == other
    assert "one | died by SIGKILL; starts again in 0.05 s. To keep it down: rolecall stop one" in it.stream.getvalue()


def test_a_process_that_keeps_dying_is_left_alone_longer_each_time(stack: Make) -> None:
    it = stack(one="sh -c 'exit 3'")
    it.supervisor.start(["one"])
    it.until(lambda: bool(it.supervisor.status()) and it["one"].restarts == 4, "it died four times")
    said = [line for line in it.stream.getvalue().splitlines() if "ended with exit code 3" in line]
    assert [line.split("starts again in ")[1].split(" s")[0] for line in said] == ["0.05", "0.1", "0.2", "0.2"]


def test_children_of_a_killed_parent_are_killed_before_it_starts_again(stack: Make) -> None:
    it = stack(one=parent_with_child())
    it.up("one")
    it.until(lambda: it.supervisor.tail("one") == ["here"], "it has a child")
    pid = it["one"].pid
    [child] = children_of(pid)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    it.until(lambda: it["one"].restarts == 1, "its death was noticed")
    wait_until(lambda: not alive(child), seconds=5, what="the child is gone")


def test_a_held_process_goes_down_and_stays_down_until_it_is_released(stack: Make) -> None:
    it = stack(one=SLEEPER, two=SLEEPER)
    it.up("one", "two")
    pid = it["one"].pid
    it.supervisor.hold({"one"})
    it.until(lambda: it["one"].state is State.STOPPED, "it is stopped")
    assert pid is not None
    assert not alive(pid)
    assert it.runs("two")
    for _ in range(5):
        it.supervisor.tick(0.02)
    assert it["one"].state is State.STOPPED
    it.supervisor.hold(set())
    it.until(lambda: it.runs("one"), "it runs again")
    assert it["one"].restarts == 0


def test_a_process_that_waits_for_its_restart_can_be_held(stack: Make) -> None:
    it = stack(one="sh -c 'exit 1'", backoff=Backoff(first=300, longest=300))
    it.supervisor.start(["one"])
    it.until(lambda: bool(it.supervisor.status()) and it["one"].state is State.WAITING, "it waits")
    it.supervisor.hold({"one"})
    it.until(lambda: it["one"].state is State.STOPPED, "it is down")
    it.supervisor.hold(set())
    it.until(lambda: it["one"].restarts == 2, "released, it starts at once")


def test_a_process_released_while_it_stops_runs_again(stack: Make) -> None:
    it = stack(one=parent_with_child(ignoring="signal.signal(signal.SIGTERM, signal.SIG_IGN)"), grace=0.3)
    it.up("one")
    it.until(lambda: it.supervisor.tail("one") == ["here"], "it ignores SIGTERM")
    pid = it["one"].pid
    it.supervisor.hold({"one"})
    it.until(lambda: it["one"].state is State.STOPPING, "it stops")
    it.supervisor.hold(set())
    it.until(lambda: it.runs("one") and it["one"].pid != pid, "it runs again")
    assert it["one"].restarts == 0


def test_whoever_ignores_sigterm_is_killed_with_its_children_when_its_grace_is_over(stack: Make) -> None:
    it = stack(one=parent_with_child(ignoring="signal.signal(signal.SIGTERM, signal.SIG_IGN)"), grace=0.2)
    it.up("one")
    it.until(lambda: it.supervisor.tail("one") == ["here"], "it ignores SIGTERM")
    pid = it["one"].pid
    everybody = [pid, *children_of(pid)]
    it.stop()
    assert len(everybody) == 2
    assert not any(alive(pid) for pid in everybody if pid)


def test_workers_stop_before_dispatcher_and_admin_app_and_those_before_the_servers(stack: Make) -> None:
    code = "import os,signal,sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit()); print('here', flush=True)"
    note = "import time; open(os.path.join(os.environ['HERE'], 'order'), 'a').write(sys.argv[1] + ' ')"
    command = f"""{PYTHON} "{code}
try: signal.pause()
finally: {note}" """
    names = ["redis", "mongo", "admin", "dispatcher", "worker", "gpu-worker"]
    it = stack(**{name: command + name for name in names})
    it.up(*names)
    it.until(lambda: all(it.supervisor.tail(name) for name in names), "all can be stopped")
    it.stop()
    order = (it.folder / "order").read_text().split()
    assert set(order[2:4]) == {"dispatcher", "admin"}
    assert set(order[:2]) == {"worker", "gpu-worker"}
    assert set(order[4:]) == {"redis", "mongo"}


def test_time_that_a_stage_does_not_use_is_given_to_the_next(stack: Make) -> None:
    slow = f"""{PYTHON} "import signal,time; signal.signal(signal.SIGTERM, lambda *_: (time.sleep(2.8), exit(0)))
print('here', flush=True); time.sleep(600)" """
    it = stack(one=SLEEPER, redis=slow, grace=2.0)
    it.up("one", "redis")
    it.until(lambda: it.supervisor.tail("redis") == ["here"], "it can be stopped")
    it.stop()
    assert "redis  stopped after" in it.stream.getvalue()


def test_what_is_asked_for_while_all_stops_is_not_started(stack: Make) -> None:
    it = stack(one=SLEEPER, redis=SLEEPER)
    it.up("one", "redis")
    it.stopped = True
    # As a thread would that has not heard of the stop.
    it.supervisor.stop(hurry=lambda: bool(it.supervisor.start(["one", "redis"])))
    assert [status.state for status in it.supervisor.status()] == [State.STOPPED, State.STOPPED]


def test_in_a_hurry_nobody_is_waited_for(stack: Make) -> None:
    it = stack(one=parent_with_child(ignoring="signal.signal(signal.SIGTERM, signal.SIG_IGN)"), grace=600)
    it.up("one")
    it.until(lambda: it.supervisor.tail("one") == ["here"], "it ignores SIGTERM")
    everybody = [it["one"].pid, *children_of(it["one"].pid)]
    it.stopped = True
    it.supervisor.stop(hurry=lambda: True)
    assert not any(alive(pid) for pid in everybody if pid)


def test_what_it_says_goes_to_its_log_and_under_its_name_to_the_terminal(stack: Make) -> None:
    it = stack(longer="printf 'one\\ntwo\\nno end'", b=SLEEPER)
    it.supervisor.start(["longer"])
    it.until(lambda: bool(it.supervisor.status()) and it["longer"].restarts >= 1, "it ended")
    assert it.supervisor.tail("longer")[:3] == ["one", "two", "no end"]
    assert it.stream.getvalue().startswith("longer | one\nlonger | two\nlonger | no end\n")
    assert (it.folder / "log" / "longer.log").read_bytes().startswith(b"one\ntwo\nno end")


def test_a_terminal_that_is_gone_stops_nothing(stack: Make) -> None:
    it = stack(one="echo here")
    it.stream.close()
    it.supervisor.start(["one"])
    it.until(lambda: bool(it.supervisor.status()) and it["one"].restarts >= 2, "it runs and runs")


def test_a_reaper_that_was_killed_is_replaced_by_one_that_knows_all(stack: Make) -> None:
    it = stack(one=SLEEPER)
    it.up("one")
    [reaper] = [child for child in psutil.Process().children() if "reaper.py" in " ".join(child.cmdline())]
    reaper.kill()
    it.until(lambda: _reapers() not in ([], [reaper.pid]), "there is another")
    it.stop()
    assert _reapers() == []


def _reapers() -> list[int]:
    found = psutil.Process().children()
    return [child.pid for child in found if child.status() != "zombie" and "reaper.py" in " ".join(child.cmdline())]


KILLED_SUPERVISOR = """
import os, sys
from pathlib import Path
from app.stack.console import Console
from app.stack.procfile import Entry
from app.stack.supervisor import Supervisor

entries = [Entry("worker", sys.argv[2]), Entry("redis", "sleep 600")]
supervisor = Supervisor(
    entries, folder=Path(sys.argv[1]), environ=os.environ, logs=Path(sys.argv[1], "log"),
    console=Console(sys.stderr, []), grace=lambda _: 0.3,
)
supervisor.start(["worker", "redis"])
told = False
while True:
    supervisor.tick(0.01)
    if supervisor.tail("worker") == ["here"] and not told:
        told = True
        print("up", flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_a_supervisor_that_was_killed(tmp_path: Path, how: signal.Signals) -> None:
    # SIGTERM too: this supervisor does not handle it, so it dies without stopping anybody.
    command = parent_with_child(ignoring="signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_SUPERVISOR, str(tmp_path), command], stdout=subprocess.PIPE
    ) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == b"up\n"
        descendants = children_of(supervisor.pid)
        assert len(descendants) == 4  # the reaper, the worker, its child, redis
        supervisor.send_signal(how)
    wait_until(lambda: not any(map(alive, descendants)), seconds=10, what="nobody is left")


def test_a_process_whose_supervisor_died_before_the_reaper_knew_of_it_never_begins(tmp_path: Path) -> None:
    """What the launch line promises: without its supervisor's word the shell runs nothing."""
    from app.stack.supervisor import _LAUNCH

    shell = subprocess.run(
        ["/bin/sh", "-c", f"{_LAUNCH} touch {tmp_path}/began"], stdin=subprocess.DEVNULL, check=False, timeout=10
    )
    assert shell.returncode != 0
    assert not (tmp_path / "began").exists()

"""Keeps processes running: starts again what dies, stops all in order, leaves nobody behind.

One thread, one loop: :meth:`Supervisor.tick` reads what the processes say and does what is due. ``start``, ``hold`` and
``status`` may be called from other threads; they only set or read what the next tick looks at.

Every process leads a session of its own, so that a terminal's Ctrl-C reaches only the supervisor, and its whole group
can be killed once the leader is gone. It is told to go only after the :mod:`reaper <app.stack.reaper>` knows of it: so
not even a supervisor that dies by SIGKILL in the middle of starting leaves a process.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO

from app.stack import reaper
from app.stack.console import Console, Log
from app.stack.procfile import Entry

# The shell waits for one line, then becomes the command; at end of file instead, nothing is run. `env` takes the
# assignments in front of the command, so that the leader of the group is the program itself and gets our SIGTERM.
_LAUNCH = "read -r _ && exec env "


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a process that died is left alone, in seconds."""

    first: float = 0.5
    longest: float = 30.0
    steady: float = 30.0
    """Whoever lived this long has recovered: its next death counts as the first."""

    def after(self, previous: float, lived: float) -> float:
        """Return the pause after a process that lived ``lived`` died; ``previous`` was the last pause (0: none)."""
        if lived >= self.steady or previous == 0:
            return self.first
        return min(2 * previous, self.longest)


class State(StrEnum):
    RUNNING = "running"
    WAITING = "waiting"
    """It died and is started again when its pause is over."""
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Status:
    """One process as it is now. ``restarts`` counts how often it died and was to be started again."""

    name: str
    state: State
    pid: int | None
    since: float
    """Unix time at which it came into this state."""
    restarts: int


class _Service:
    """One entry and its present process."""

    def __init__(self, entry: Entry, log: Log, grace: float) -> None:
        self.entry = entry
        self.log = log
        self.grace = grace
        self.started = False
        self.held = False
        self.process: subprocess.Popen[bytes] | None = None
        self.born = 0.0
        self.pause = 0.0
        self.due = 0.0
        self.asked = 0.0
        self.kill_at: float | None = None
        self.restarts = 0
        self.state = State.STOPPED
        self.since = time.time()

    def become(self, state: State) -> None:
        self.state, self.since = state, time.time()

    def status(self) -> Status:
        pid = self.process.pid if self.process else None
        return Status(self.entry.name, self.state, pid, self.since, self.restarts)


class Supervisor:
    """Runs the ``entries``, each one's output going to ``logs/<name>.log`` and the console.

    Args:
        grace: seconds that a process gets between SIGTERM and SIGKILL, by its entry.
        program: how the operator calls ``rolecall``, for the hint how to keep a process down.
        changed: called, in the tick, with the status of all when it is not what it was.
    """

    def __init__(
        self, entries: Collection[Entry], *, folder: Path, environ: Mapping[str, str], logs: Path, console: Console,
        grace: Callable[[Entry], float], program: str = "rolecall", backoff: Backoff | None = None,
        changed: Callable[[tuple[Status, ...]], None] | None = None,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._environ = dict(environ)
        self._console = console
        self._backoff = backoff or Backoff()
        self._changed = changed
        self._program = program
        self._services = {
            entry.name: _Service(entry, Log(logs / f"{entry.name}.log"), grace(entry)) for entry in entries
        }
        self._selector = selectors.DefaultSelector()
        self._reaper = self._start_reaper()
        self._status: tuple[Status, ...] = ()
        self._closed = -1
        """Entries up to this rank are stopped for good, whatever others still ask for."""

    # --- what other threads may call -----------------------------------------------------------------------------

    def start(self, names: Iterable[str]) -> None:
        """Have processes run from the next tick on."""
        for name in names:
            self._services[name].started = True

    def hold(self, names: Collection[str]) -> None:
        """Keep exactly these processes down, those that run included; release the others."""
        for name, service in self._services.items():
            service.held = name in names

    def status(self) -> tuple[Status, ...]:
        """Return every process as the last tick left it."""
        return self._status

    def tail(self, name: str) -> list[str]:
        """Return the last lines that a process said."""
        return list(self._services[name].log.tail)

    # --- the loop ------------------------------------------------------------------------------------------------

    def tick(self, seconds: float = 0.1) -> None:
        """Read output for at most ``seconds``, then start, stop, kill and reap what is due."""
        if self._selector.get_map():
            for key, _ in self._selector.select(seconds):
                self._read(key.data, key.fileobj)  # type: ignore[arg-type] # we register only pipes
        else:
            time.sleep(seconds)
        self._mind_reaper()
        for service in self._services.values():
            self._mind(service)
        status = tuple(service.status() for service in self._services.values())
        if status != self._status:
            self._status = status
            if self._changed:
                self._changed(status)

    def stop(self, *, hurry: Callable[[], bool] = lambda: False) -> None:
        """Stop all, stage by stage, and return when nobody is left; at once where ``hurry`` turns true.

        Time that one stage does not use is given to the next.
        """
        until = time.monotonic()
        for rank in sorted({service.entry.rank for service in self._services.values()}):
            stage = [service for service in self._services.values() if service.entry.rank == rank]
            until += max(service.grace for service in stage)
            for service in stage:
                service.grace = until - time.monotonic()
            self._closed = rank
            groups = [service.process.pid for service in stage if service.process]
            while any(service.process for service in stage):
                self.tick(0.05)
                if hurry():
                    for service in stage:
                        service.grace = 0.0
                        if service.kill_at is not None:
                            service.kill_at = 0.0
            _await_end(groups)
        self._stop_reaper()
        for service in self._services.values():
            service.log.close()
        self._selector.close()

    # --- one process ---------------------------------------------------------------------------------------------

    def _wanted(self, service: _Service) -> bool:
        return service.started and not service.held and service.entry.rank > self._closed

    def _mind(self, service: _Service) -> None:
        now, wanted = time.monotonic(), self._wanted(service)
        if service.process is None:
            if not wanted:
                service.pause = 0.0
                if service.state is not State.STOPPED:
                    service.become(State.STOPPED)
            elif now >= service.due or service.state is State.STOPPED:
                self._spawn(service)
        elif service.process.poll() is not None:
            self._bury(service, service.process)
        elif not wanted or service.kill_at is not None:
            self._end(service, service.process, now)

    def _spawn(self, service: _Service) -> None:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _LAUNCH + service.entry.command],
            cwd=self._folder,
            env=self._environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        service.process, service.born, service.kill_at = process, time.monotonic(), None
        service.become(State.RUNNING)
        self._tell_reaper(f"+{process.pid} {service.entry.rank} {service.grace}")
        pipe, go = process.stdout, process.stdin
        if pipe is None or go is None:  # pragma: no cover - both are pipes, which mypy cannot know
            raise AssertionError("the process has no pipes")
        os.set_blocking(pipe.fileno(), False)
        self._selector.register(pipe, selectors.EVENT_READ, service)
        with contextlib.suppress(BrokenPipeError), go:
            go.write(b"go\n")

    def _end(self, service: _Service, process: subprocess.Popen[bytes], now: float) -> None:
        """Ask a process to stop, once; kill its group when its time is over."""
        if service.kill_at is None:
            service.asked, service.kill_at = now, now + service.grace
            service.become(State.STOPPING)
            process.terminate()
        elif now >= service.kill_at:
            _kill_group(process.pid)

    def _bury(self, service: _Service, process: subprocess.Popen[bytes]) -> None:
        """Clear up after a process that ended, and see to the next."""
        _kill_group(process.pid)  # children that outlived it would hold its port or go on with its work
        self._tell_reaper(f"-{process.pid}")
        if process.stdout:
            while self._read(service, process.stdout):
                pass
            self._close(service, process.stdout)
        service.process = None
        name, now = service.entry.name, time.monotonic()
        if not self._wanted(service) or service.kill_at is not None:
            service.become(State.STOPPED)
            if self._closed >= 0 and service.kill_at is not None:
                how = "killed" if process.returncode == -signal.SIGKILL else "stopped"
                self._console.say(f"  {self._console.tag(name)}  {how} after {now - service.asked:.1f} s")
            return
        service.pause = self._backoff.after(service.pause, now - service.born)
        service.due = now + service.pause
        service.restarts += 1
        service.become(State.WAITING)
        self._console.say(
            f"{self._console.tag(name)} | {_how(process.returncode)}; starts again in {service.pause:g} s. "
            f"To keep it down: {self._program} stop {name}"
        )

    # --- output --------------------------------------------------------------------------------------------------

    def _read(self, service: _Service, pipe: IO[bytes]) -> bool:
        """Take what is in the pipe; return whether there may be more."""
        if pipe.closed:
            return False
        try:
            data = os.read(pipe.fileno(), 65_536)
        except BlockingIOError:
            return False
        if not data:
            self._close(service, pipe)
            return False
        for line in service.log.feed(data):
            self._console.line(service.entry.name, line)
        return True

    def _close(self, service: _Service, pipe: IO[bytes]) -> None:
        if not pipe.closed:
            self._selector.unregister(pipe)
            pipe.close()
            for line in service.log.flush():
                self._console.line(service.entry.name, line)

    # --- the reaper ----------------------------------------------------------------------------------------------

    def _start_reaper(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(reaper.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _tell_reaper(self, line: str) -> None:
        pipe = self._reaper.stdin
        if pipe:
            with contextlib.suppress(BrokenPipeError):  # the next tick makes a new one and tells it all
                pipe.write(f"{line}\n".encode())
                pipe.flush()

    def _mind_reaper(self) -> None:
        if self._reaper.poll() is None:
            return
        self._stop_reaper()
        self._reaper = self._start_reaper()
        for service in self._services.values():
            if service.process:
                self._tell_reaper(f"+{service.process.pid} {service.entry.rank} {service.grace}")

    def _stop_reaper(self) -> None:
        if self._reaper.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._reaper.stdin.close()
        self._reaper.wait()


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _await_end(groups: list[int], *, seconds: float = 0.3) -> None:
    """Wait until killed groups are really gone, so that whoever looks after us sees nobody."""
    deadline = time.monotonic() + seconds
    while any(map(_group_lives, groups)) and time.monotonic() < deadline:
        time.sleep(0.01)


def _group_lives(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, 0)
        return True
    return False


def _how(returncode: int) -> str:
    if returncode < 0:
        with contextlib.suppress(ValueError):
            return f"died by {signal.Signals(-returncode).name}"
    return f"ended with exit code {returncode}"

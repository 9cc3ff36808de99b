"""How ``rolecall ps | stop | start`` and a running ``rolecall up`` talk: by files in ``DATA_DIR/stack``.

``lock`` is locked by the running supervisor and holds its pid; the kernel lets go of it however the supervisor dies.
``state.json`` is what the supervisor last wrote of its processes. A file ``<name>.down`` keeps that process down.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from app.errors import RolecallError
from app.stack.supervisor import State, Status

_DOWN = ".down"


class AlreadyRunning(RolecallError):
    """Another ``rolecall up`` owns this data folder."""

    code = "already_running"


class NotRunning(RolecallError):
    """No ``rolecall up`` owns this data folder."""

    code = "not_running"


class Control:
    """The files of one data folder."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._folder = data_dir / "stack"
        self._lock = self._folder / "lock"
        self._state = self._folder / "state.json"

    # --- the supervisor's side -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def own(self, url: str) -> Iterator[None]:
        """Own the data folder until the block ends; ``url`` tells others where we answer.

        Raises:
            AlreadyRunning: another process owns it; the text names it.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._lock.open("a+") as lock:
            if not _lock_exclusively(lock.fileno()):
                pid, where = self._owner()
                raise AlreadyRunning(
                    f"Rolecall is running already at {where}: pid {pid} owns {self._data_dir}. Stop it with Ctrl-C in "
                    f"its terminal or with `kill {pid}`. A second one needs its own DATA_DIR, ADMIN_PORT, REDIS_PORT "
                    "and MONGO_PORT"
                )
            lock.truncate(0)
            lock.write(f"{os.getpid()} {url}")
            lock.flush()
            self._clear()
            try:
                yield
            finally:
                self._clear()

    def held(self) -> frozenset[str]:
        """Return the names that somebody wants kept down."""
        return frozenset(path.name.removesuffix(_DOWN) for path in self._folder.glob(f"*{_DOWN}"))

    def publish(self, status: Collection[Status]) -> None:
        """Let others know of the processes."""
        rows = [
            {"name": one.name, "state": one.state, "pid": one.pid, "since": one.since, "restarts": one.restarts}
            for one in status
        ]
        fresh = self._state.with_suffix(".new")
        fresh.write_text(json.dumps(rows))
        fresh.replace(self._state)

    def _clear(self) -> None:
        for path in (self._state, *self._folder.glob(f"*{_DOWN}")):
            path.unlink(missing_ok=True)

    # --- the operator's side -------------------------------------------------------------------------------------

    def processes(self) -> list[Status]:
        """Return the processes of the running supervisor.

        Raises:
            NotRunning: there is none.
        """
        with contextlib.suppress(FileNotFoundError), self._lock.open() as lock:
            if not _lock(lock.fileno(), fcntl.LOCK_SH):
                try:
                    rows = json.loads(self._state.read_text())
                except FileNotFoundError:  # it has only just begun
                    return []
                return [Status(**{**row, "state": State(row["state"])}) for row in rows]
        raise NotRunning(f"no Rolecall runs in {self._data_dir}; start one with `make up` or `rolecall up`")

    def stop(self, names: Collection[str], *, seconds: float) -> list[Status]:
        """Keep processes down and wait until they are. See :meth:`start` for what is raised."""
        self._check(names)
        for name in names:
            self._folder.joinpath(f"{name}{_DOWN}").touch()
        return self._wait(names, State.STOPPED, seconds)

    def start(self, names: Collection[str], *, seconds: float) -> list[Status]:
        """Let processes run again and wait until they do.

        Raises:
            NotRunning: no supervisor runs, or it has no process of that name.
            RolecallError: it is not so after ``seconds``.
        """
        self._check(names)
        for name in names:
            self._folder.joinpath(f"{name}{_DOWN}").unlink(missing_ok=True)
        return self._wait(names, State.RUNNING, seconds)

    def _check(self, names: Collection[str]) -> None:
        known = [status.name for status in self.processes()]
        for name in names:
            if name not in known:
                raise NotRunning(f"there is no process {name!r}; there are {', '.join(known)}")

    def _wait(self, names: Collection[str], state: State, seconds: float) -> list[Status]:
        deadline = time.monotonic() + seconds
        while True:
            chosen = [status for status in self.processes() if status.name in names]
            if all(status.state is state for status in chosen):
                return chosen
            if time.monotonic() > deadline:
                late = ", ".join(f"{one.name} is {one.state}" for one in chosen if one.state is not state)
                raise RolecallError(f"not {state} after {seconds:g} s: {late}", code="not_in_time")
            time.sleep(0.05)

    def _owner(self) -> tuple[str, str]:
        pid, _, url = self._lock.read_text().partition(" ")
        return pid or "unknown", url


def _lock_exclusively(descriptor: int) -> bool:
    # Somebody who only asks whether it is locked may be in the way for a moment.
    for pause in (0.0, 0.05, 0.1):
        time.sleep(pause)
        if _lock(descriptor, fcntl.LOCK_EX):
            return True
    return False


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

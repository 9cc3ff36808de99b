"""``rolecall up``: a whole Rolecall on this machine until Ctrl-C."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import TextIO
from urllib.parse import urlsplit

from app.client import Client
from app.config import Settings
from app.errors import SettingError
from app.stack.console import Console
from app.stack.control import Control
from app.stack.opening import Opening
from app.stack.ports import check_free
from app.stack.procfile import ADMIN, MONGO, REDIS, Entry, choose, read_procfile
from app.stack.supervisor import Supervisor

STOP_DEADLINE_S = 3.0
"""``STOP_DEADLINE_S`` of our processes unless it is set: a whole stop must take less than 10 s (see :func:`grace`)."""

OUTSIDE = {REDIS: "REDIS_URL", MONGO: "MONGO_URL"}
"""The setting that names a server somewhere else, by the embedded server that is then not started."""


def up(settings: Settings, environ: Mapping[str, str], *, only: list[str], folder: Path, stream: TextIO) -> int:
    """Run the processes of the Procfile in ``folder`` until SIGINT, SIGTERM or SIGHUP; return the exit code.

    ``environ`` is what ``settings`` were read from and what the processes get.

    Raises:
        RolecallError: it cannot start (``SettingError``, ``AlreadyRunning``, ``PortInUse``).
    """
    entries = choose(read_procfile(folder / "Procfile"), only)
    elsewhere = {
        entry.name: environ[OUTSIDE[entry.name]] for entry in entries if environ.get(OUTSIDE.get(entry.name, ""))
    }
    entries = [entry for entry in entries if entry.name not in elsewhere]
    if not entries:
        raise SettingError("there is nothing to start: the chosen servers are elsewhere, by REDIS_URL and MONGO_URL")
    program = _program(environ.get("PATH"))
    stop_deadline_s = settings.stop_deadline_s if environ.get("STOP_DEADLINE_S") else STOP_DEADLINE_S

    control, logs = Control(settings.data_dir), settings.data_dir / "log"
    console = Console(stream, [entry.name for entry in entries])
    with control.own(settings.admin_url), Signals() as signals, Client(settings.admin_url, timeout_s=3.0) as client:
        _check_ports(entries, settings)
        console.say(f"Rolecall {version('rolecall')}")
        for name, url in elsewhere.items():
            console.say(f"  {console.tag(name)}  yours  {_without_secrets(url)}")
        console.quiet = True
        supervisor = Supervisor(
            entries,
            folder=folder,
            environ={
                "PYTHONUNBUFFERED": "1",
                **environ,
                "STOP_DEADLINE_S": f"{stop_deadline_s:g}",
                "PATH": os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", os.defpath)]),
            },
            logs=logs,
            console=console,
            program=program,
            grace=lambda entry: grace(entry, stop_deadline_s),
            changed=control.publish,
        )
        opening = Opening(
            supervisor, entries, settings, client, console, examples=folder / "examples", logs=logs, program=program
        )
        opening.start()
        while not signals.count and opening.failure is None:
            supervisor.hold(control.held())
            supervisor.tick()
        return _close(supervisor, opening, console, signals)


def grace(entry: Entry, stop_deadline_s: float) -> float:
    """Return the seconds between SIGTERM and SIGKILL. A role worker hands back what it still does at its deadline."""
    return stop_deadline_s + 1.5 if entry.rank == 0 else 2.2


def _program(path: str | None) -> str:
    """Return how the operator calls this program: by its name where the shell finds it, else by its path."""
    mine = Path(sys.executable).with_name("rolecall")
    if shutil.which("rolecall", path=path) == str(mine):
        return "rolecall"
    return str(mine.relative_to(Path.cwd())) if mine.is_relative_to(Path.cwd()) else str(mine)


def _close(supervisor: Supervisor, opening: Opening, console: Console, signals: Signals) -> int:
    if opening.failure is not None:
        console.say(f"\n{opening.failure}\n")
    console.quiet = True
    console.say("\nStopping; Ctrl-C again kills at once.")
    asked, begun = signals.count, time.monotonic()
    opening.cancel()
    supervisor.stop(hurry=lambda: signals.count > asked)
    opening.join()
    console.say(f"Stopped in {time.monotonic() - begun:.1f} s.")
    return 0 if opening.failure is None else 1


def _check_ports(entries: list[Entry], settings: Settings) -> None:
    places = {
        ADMIN: (settings.admin_host, settings.admin_port, "ADMIN_PORT"),
        REDIS: ("127.0.0.1", settings.redis_port, "REDIS_PORT"),
        MONGO: ("127.0.0.1", settings.mongo_port, "MONGO_PORT"),
    }
    for entry in entries:
        if entry.name in places:
            check_free(*places[entry.name])


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


class Signals:
    """Counts the requests to stop while it is entered; the loop looks at the count, nothing is interrupted."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Signals:
        self._before = {number: signal.signal(number, self._count) for number in self.NUMBERS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _count(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1

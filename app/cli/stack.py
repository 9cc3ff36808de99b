"""Commands for the processes on this machine."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click

from app.cli.show import as_json, table
from app.config import load_settings
from app.errors import SettingError
from app.stack.control import Control
from app.stack.procfile import MONGO, REDIS, SERVERS
from app.stack.servers import mongo_command, valkey_command
from app.stack.supervisor import Status
from app.stack.up import up as run_up

_WAIT_S = 15.0
"""A little longer than the longest grace of a process in ``rolecall up``."""


@click.command()
@click.option("--only", metavar="NAME,...", default="", help="Only these processes of the Procfile.")
def up(only: str) -> None:
    """Start everything here and keep it running until Ctrl-C.

    The processes are those of ./Procfile. Valkey and the MongoDB-protocol server are not started where REDIS_URL or
    MONGO_URL names another.
    """
    names = [name for name in (part.strip() for part in only.split(",")) if name]
    sys.exit(run_up(load_settings(), os.environ, only=names, folder=Path(), stream=sys.stdout))


@click.command()
@click.argument("names", nargs=-1, required=True)
def stop(names: tuple[str, ...]) -> None:
    """Stop processes of `rolecall up` and keep them down."""
    _print(_control().stop(names, seconds=_WAIT_S))


@click.command()
@click.argument("names", nargs=-1, required=True)
def start(names: tuple[str, ...]) -> None:
    """Start processes again that `rolecall stop` keeps down."""
    _print(_control().start(names, seconds=_WAIT_S))


@click.command()
@click.option("--json", "json_", is_flag=True, help="For programs.")
def ps(json_: bool) -> None:
    """Show the processes of `rolecall up`."""
    processes = _control().processes()
    if json_:
        as_json([{"name": one.name, "state": one.state, "pid": one.pid, "restarts": one.restarts} for one in processes])
    else:
        _print(processes)


@click.command()
@click.argument("which", type=click.Choice(SERVERS))
def server(which: str) -> None:
    """Become the embedded Valkey or MongoDB-protocol server (this process is replaced)."""
    settings = load_settings()
    make, port = {REDIS: (valkey_command, settings.redis_port), MONGO: (mongo_command, settings.mongo_port)}[which]
    data = settings.data_dir / which
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"DATA_DIR={settings.data_dir}: cannot make {data}: {error.strerror}") from None
    command = make(port, data)
    os.execv(command[0], command)  # noqa: S606 - no shell on purpose: the server gets our pid and signals


def _control() -> Control:
    return Control(load_settings().data_dir)


def _print(processes: list[Status]) -> None:
    now = time.time()
    table(
        ["PROCESS", "STATE", "PID", "FOR", "RESTARTS"],
        [[one.name, one.state, one.pid, f"{max(now - one.since, 0):.0f} s", one.restarts] for one in processes],
    )


COMMANDS = (up, ps, stop, start, server)

"""The commands that take workers and roles out of service and back: ``drain`` and ``undrain``."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from app.cli import show
from app.cli.api import api_command
from app.client import Client


@api_command()
@click.argument("name", metavar="ROLE|NODE")
@click.option("--force", is_flag=True, help="Also if variants lose their last worker with it.")
def drain(client: Client, name: str, force: bool, json_: bool) -> None:
    """Let a worker, or everybody of a role, take no more runs.

    What they execute goes back to the queue at the next node. It holds until `rolecall undrain`, restarts included.
    """
    _show(client.post(f"{_path(client, name)}/drain", {"force": force}), json_)


@api_command()
@click.argument("name", metavar="ROLE|NODE")
def undrain(client: Client, name: str, json_: bool) -> None:
    """Let a drained worker or role take runs again."""
    _show(client.post(f"{_path(client, name)}/undrain"), json_)


def _path(client: Client, name: str) -> str:
    """Return the path of the worker or role of that name; an instance id is a worker's name too."""
    names = {each[key] for each in client.get("/admin/workers")["workers"] for key in ("node", "instance_id")}
    kind = "workers" if name in names or "@" in name else "roles"
    return f"/admin/{kind}/{quote(name, safe='@')}"


def _show(answer: dict[str, Any], json_: bool) -> None:
    if json_:
        show.as_json(answer)
        return
    what = f"role {answer['role']}" if "role" in answer else f"worker {answer['node']}"
    if "by" in answer:
        click.echo(f"{what}: drained")
    else:
        click.echo(f"{what}: " + ("still drained, with its whole role" if answer["drained"] else "takes runs"))


COMMANDS = (drain, undrain)

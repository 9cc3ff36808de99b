"""``rolecall``: start a whole Rolecall on this machine, and talk to a running one."""

from __future__ import annotations

from typing import Any

import click

from app.cli import api, fleet, flows, runs, show, stack
from app.client import Refused, TryLater
from app.errors import RolecallError, Unavailable

REFUSED, UNAVAILABLE = 1, 3


class _Group(click.Group):
    """Turns our errors into text on standard error and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RolecallError as error:
            remote = isinstance(error, Refused | TryLater)  # its stable code is worth showing, ours says nothing more
            click.echo(f"rolecall: {error} [{error.code}]" if remote else f"rolecall: {error}", err=True)
            if isinstance(error, Refused):
                for fault in error.problem.get("errors", []):
                    click.echo(f"  {show.fault(fault)}", err=True)
                for warning in error.problem.get("warnings", []):
                    click.echo(f"  warning: {show.fault(warning)}", err=True)
            ctx.exit(UNAVAILABLE if isinstance(error, Unavailable) else REFUSED)


@click.group(
    cls=_Group,
    epilog="Exit codes: 0 done; 1 refused, or the run failed or was cancelled; 2 wrong usage; 3 not possible now, try "
    "again later. Settings come from the environment; docs/settings.md lists them.",
)
@click.version_option(package_name="rolecall")
def main() -> None:
    """Runs FlowDSL flows on the workers that are able to run them."""


for command in (*stack.COMMANDS, *api.COMMANDS, *runs.COMMANDS, *flows.COMMANDS, *fleet.COMMANDS):
    main.add_command(command)

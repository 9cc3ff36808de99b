"""The commands about runs that failed for good: ``retry`` and ``replay``."""

from __future__ import annotations

from typing import Any

import click

from app.cli import show
from app.cli.api import api_command
from app.client import Client


@api_command()
@click.argument("run_id", metavar="RUN")
def retry(client: Client, run_id: str, json_: bool) -> None:
    """Start an ended run anew, with the same input, resolved again."""
    accepted = client.post(f"/api/v1/runs/{run_id}/retry")
    show.as_json(accepted) if json_ else show.run(accepted)


@api_command()
@click.option("--deployment", help="Only runs of this deployment.")
@click.option("--role", help="Only runs for this role.")
@click.option("--code", help="Only runs with this error code, like worker_lost.")
@click.option("--status", type=click.Choice(["failed", "cancelled"]), default="failed", show_default=True)
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@click.option("--yes", is_flag=True, help="Start them; without it they are only listed.")
def replay(client: Client, yes: bool, json_: bool, **where: Any) -> None:
    """List the runs that failed for good; with --yes start each of them anew, once."""
    body = {name: value for name, value in where.items() if value is not None}
    said = client.post("/api/v1/runs/replay", body | {"dryRun": not yes})
    if json_:
        show.as_json(said)
        return
    runs, refused = said["runs"], said["refused"]
    rows = [(row["runId"], row["deploymentId"], (row["error"] or {}).get("code"), row["replayedBy"]) for row in runs]
    if rows:
        show.table(("RUN", "DEPLOYMENT", "ERROR", "REPLAYED BY"), rows)
    for row in refused:
        click.echo(f"not replayed: {row['runId']}: {row['detail']} [{row['code']}]", err=True)
    if not rows and not refused:
        click.echo("No run matches.")
    elif not yes:
        click.echo("Nothing was started. Start them: the same with --yes", err=True)
    if said["more"]:
        click.echo("There are more of them; ask again when these are done.", err=True)


COMMANDS = (retry, replay)

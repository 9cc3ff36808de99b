"""Commands that call the admin app over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from app.cli import show
from app.client import Client, Refused
from app.config import load_settings
from app.stack.examples import CONTENT_TYPES

_DOCUMENT = click.Path(exists=True, dir_okay=False, path_type=Path)


def api_command(name: str | None = None) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command that gets a ``client`` for ``--url`` and the flag ``json_`` of ``--json``."""

    def wrap(function: Callable[..., None]) -> click.Command:
        @wraps(function)
        def call(url: str | None, **options: Any) -> None:
            with Client(url or load_settings().admin_url) as client:
                function(client, **options)

        call = click.option("--json", "json_", is_flag=True, help="For programs.")(call)
        call = click.option("--url", help="The admin app; default: the one of ADMIN_HOST and ADMIN_PORT.")(call)
        return click.command(name or function.__name__)(call)

    return wrap


@api_command("import")
@click.argument("files", nargs=-1, required=True, type=_DOCUMENT)
@click.option("--publish", is_flag=True, help="Make the imported versions the published ones.")
def import_(client: Client, files: tuple[Path, ...], publish: bool, json_: bool) -> None:
    """Import FlowDSL documents, JSON or YAML."""
    flows: list[dict[str, Any]] = []
    for path in files:
        kind = CONTENT_TYPES.get(path.suffix, "application/json")
        answer = client.upload("/api/v1/flows/import", path.read_bytes(), kind, publish="true" if publish else None)
        flows += answer["flows"]
    if json_:
        show.as_json({"flows": flows})
        return
    show.table(
        ["FLOW", "VERSION", "NUMBER", "PUBLISHED"],
        [[flow["flowId"], flow["versionId"], flow["number"], "yes" if flow["published"] else "no"] for flow in flows],
    )
    for flow in flows:
        for warning in flow["warnings"]:
            click.echo(f"warning: {flow['flowId']} {show.fault(warning)}", err=True)


@api_command()
@click.argument("file", type=_DOCUMENT)
def deploy(client: Client, file: Path, json_: bool) -> None:
    """Create or replace the deployment in a JSON file.

    The file's `id` names it (without one: the file's name). A `rev` in the file must be the present one; without, the
    deployment is replaced as it is now.
    """
    body = _read_json(file.read_text("utf-8"), str(file))
    if not isinstance(body, dict):
        raise click.UsageError(f"{file} must hold a JSON object")
    path = f"/api/v1/deployments/{body.get('id', file.stem)}"
    if body.get("rev") is None:
        try:
            body["rev"] = client.get(path)["rev"]
        except Refused as refused:
            if refused.status != 404:
                raise
            body.pop("rev", None)
    stored = client.put(path, body)
    if json_:
        show.as_json(stored)
    else:
        click.echo(f"deployment {stored['id']}: rev {stored['rev']}, {len(stored['variants'])} variants")


@api_command()
@click.argument("deployment")
@click.option("--session", help="The session that sticks to a variant (meta.session_id).")
def resolve(client: Client, deployment: str, session: str | None, json_: bool) -> None:
    """Show which variant and role a run would get now, and why. Runs nothing."""
    answer = client.post(f"/api/v1/deployments/{deployment}/resolve", {"meta": _meta(session)})
    if json_:
        show.as_json(answer)
        return
    explain = answer["explain"]
    click.echo(f"{answer['variant']} -> {answer['flowId']} {answer['versionId']} on role {answer['targetRole']}")
    click.echo(f"by {explain['by']}, {explain['roleReason']}\n")
    show.table(
        ["VARIANT", "WEIGHT", "EFFECTIVE", "ELIGIBLE", "REASONS"],
        [
            [
                one["label"],
                one["weight"],
                one["effective"],
                "yes" if one["eligible"] else "no",
                ", ".join(one["reasons"]),
            ]
            for one in explain["candidates"]
        ],
    )


@api_command()
@click.argument("deployment")
@click.option("--input", "input_", default="{}", metavar="JSON|@FILE", help="The run's input.  [default: {}]")
@click.option("--session", help="The session that sticks to a variant (meta.session_id).")
@click.option("--follow", "-f", is_flag=True, help="Show the run's events until it ends.")
@click.option("--wait", "-w", is_flag=True, help="Wait until the run has ended.")
def run(
    client: Client, deployment: str, input_: str, session: str | None, follow: bool, wait: bool, json_: bool
) -> None:
    """Start a run of a deployment."""
    body = {"input": _read_json(_text(input_), "--input"), "meta": _meta(session)}
    accepted = client.post(f"/api/v1/deployments/{deployment}/runs", body)
    if follow:
        _follow(client, accepted["runId"], "", json_)
    elif wait:
        _conclude(client.wait(accepted["runId"]), json_)
    elif json_:
        show.as_json(accepted)
    else:
        show.run(accepted)
        click.echo(f"  follow it: rolecall watch {accepted['runId']}")


@api_command()
@click.argument("run_id", metavar="RUN")
@click.option("--after", default="", metavar="ID", help="Begin after this event.")
def watch(client: Client, run_id: str, after: str, json_: bool) -> None:
    """Show a run's events from the first to the last."""
    _follow(client, run_id, after, json_)


@api_command()
@click.argument("run_id", metavar="RUN")
def cancel(client: Client, run_id: str, json_: bool) -> None:
    """Cancel a run."""
    answer = client.post(f"/api/v1/runs/{run_id}/cancel")
    show.as_json(answer) if json_ else show.run(answer)


@api_command()
def workers(client: Client, json_: bool) -> None:
    """Show every process that announces itself."""
    answer = client.get("/admin/workers")
    if json_:
        show.as_json(answer)
        return
    show.table(
        ["NODE", "ROLE", "STATE", "BUSY", "SLOTS", "PID", "LAST SEEN", "INSTANCE", "FAILING"],
        [
            [
                one["node"] or one["hostname"],
                one["role"],
                one["state"],
                one["active"] if one["executes"] else None,
                one["concurrency"] if one["executes"] else None,
                one["pid"],
                one["last_seen"],
                one["instance_id"],
                ", ".join(sorted(name for name, check in one["checks"].items() if not check["healthy"])),
            ]
            for one in answer["workers"]
        ],
    )


@api_command()
def roles(client: Client, json_: bool) -> None:
    """Show every role: its workers, what is free and what waits."""
    answer = client.get("/admin/roles")
    if json_:
        show.as_json(answer)
        return
    show.table(
        ["ROLE", "HEALTHY", "ELIGIBLE", "DRAINED", "WORKERS", "FREE", "QUEUED", "OLDEST"],
        [
            [
                name,
                "yes" if role["healthy"] else "no",
                "yes" if role["eligible"] else "no",
                "yes" if role.get("drained") else "no",
                role["workers"],
                role["free"],
                role["queued"],
                None if role.get("oldestQueuedS") is None else f"{role['oldestQueuedS']:.0f} s",
            ]
            for name, role in sorted(answer["roles"].items())
        ],
    )


@api_command()
@click.option("--deployment", help="Only runs of this deployment.")
@click.option("--role", help="Only runs for this role.")
@click.option("--status", help="Only runs with this status.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
def runs(client: Client, deployment: str | None, role: str | None, status: str | None, limit: int, json_: bool) -> None:
    """Show the newest runs."""
    answer = client.get("/api/v1/runs", deployment=deployment, role=role, status=status, limit=limit)
    if json_:
        show.as_json(answer)
        return
    show.table(
        ["RUN", "STATUS", "DEPLOYMENT", "VARIANT", "ROLE", "ATTEMPT", "CREATED", "ERROR"],
        [
            [
                one["runId"],
                one["status"],
                one["deploymentId"],
                one["variant"],
                one["targetRole"],
                one["attempt"],
                one["createdAt"],
                (one.get("error") or {}).get("code"),
            ]
            for one in answer["items"]
        ],
    )


def _follow(client: Client, run_id: str, after: str, json_: bool) -> None:
    for received in client.follow(run_id, after=after, lost=lambda why: click.echo(f"({why})", err=True)):
        if received.reset:
            show.reset(received.event, json_)
        else:
            show.as_json_line(received.event) if json_ else show.event(received.event)
    ended = client.get(f"/api/v1/runs/{run_id}")
    _exit_by(ended)


def _conclude(run: dict[str, Any], json_: bool) -> None:
    show.as_json(run) if json_ else show.run(run)
    _exit_by(run)


def _exit_by(run: dict[str, Any]) -> None:
    if run["status"] != "completed":
        raise SystemExit(1)


def _meta(session: str | None) -> dict[str, Any]:
    return {} if session is None else {"session_id": session}


def _text(given: str) -> str:
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--input: cannot read {given[1:]!r}: {error}") from None


def _read_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{what} is not JSON: {error}") from None


COMMANDS = (import_, deploy, resolve, run, watch, cancel, runs, workers, roles)

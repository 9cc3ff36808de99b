"""Commands about flows and their versions."""

from __future__ import annotations

import json
from typing import Any

import click

from app.cli import show
from app.cli.api import api_command
from app.client import Client


@api_command()
@click.argument("flow")
def flow(client: Client, flow: str, json_: bool) -> None:
    """Show a flow: its newest versions, the deployments that use it, the roles that can run it."""
    path = f"/api/v1/flows/{flow}"
    shown = client.get(path)
    versions = client.get(f"{path}/versions", limit=20)["items"]
    deployments = client.get(f"{path}/deployments", limit=500)["items"]
    roles = {} if shown.get("publishedVersionId") is None else client.get(f"{path}/roles")["roles"]
    if json_:
        show.as_json({"flow": shown, "versions": versions, "deployments": deployments, "roles": roles})
        return
    click.echo(f"{shown['flowId']}: {shown['title']}, {shown['versions']} versions\n")
    published = shown.get("publishedVersionId")
    show.table(
        ["VERSION", "NUMBER", "PUBLISHED", "CREATED"],
        [
            [one["versionId"], one["number"], "yes" if one["versionId"] == published else "no", one["createdAt"]]
            for one in versions
        ],
    )
    click.echo()
    show.table(
        ["DEPLOYMENT", "VARIANT", "VERSION", "WEIGHT", "ROLES"],
        [
            [one["id"], variant["label"], variant.get("versionId", "published"), variant["weight"],
             ", ".join(variant.get("targetRoles", ())) or "any"]
            for one in deployments
            for variant in one["variants"]
        ],
    )  # fmt: skip
    click.echo()
    show.table(
        ["ROLE", "CAN RUN IT", "WHY NOT"],
        [[role, "yes" if one["eligible"] else "no", one.get("fault")] for role, one in roles.items()],
    )


@api_command()
@click.argument("flow")
@click.argument("before")
@click.argument("after")
def diff(client: Client, flow: str, before: str, after: str, json_: bool) -> None:
    """Show what is different in version AFTER of a flow."""
    answer = client.get(f"/api/v1/flows/{flow}/versions/{before}/diff/{after}")
    if json_:
        show.as_json(answer)
        return
    for change in answer["changes"]:
        click.echo(_line(change))


def _line(change: dict[str, Any]) -> str:
    sign = {"added": "+", "removed": "-", "moved": ">"}.get(change["change"], "~")
    values = [
        show.short(json.dumps(change[name], ensure_ascii=False)) for name in ("before", "after") if name in change
    ]
    return f"{sign} {change['at']}" + (f": {' -> '.join(values)}" if values else "")


COMMANDS = (flow, diff)

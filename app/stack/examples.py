"""Loads the flows and deployments of a folder; what is there already is left alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from app.client import Client, Refused

CONTENT_TYPES = {".json": "application/json", ".yaml": "application/yaml", ".yml": "application/yaml"}


@dataclass(frozen=True, slots=True)
class Loaded:
    """How many flows the documents hold, and deployments were made and were there."""

    flows: int
    made: int
    there: int


def load_examples(client: Client, folder: Path) -> Loaded:
    """Import and publish every ``*.flowdsl.*`` of ``folder``; create every deployment of ``folder/deployments``."""
    flows = 0
    for path in sorted(folder.glob("*.flowdsl.*")):
        answer = client.upload(
            "/api/v1/flows/import",
            path.read_bytes(),
            CONTENT_TYPES.get(path.suffix, "application/json"),
            publish="true",
        )
        flows += len(answer["flows"])
    made = there = 0
    for path in sorted((folder / "deployments").glob("*.json")):
        body = json.loads(path.read_bytes())
        if _create(client, body.get("id", path.stem), body):
            made += 1
        else:
            there += 1
    return Loaded(flows, made, there)


def _create(client: Client, ident: str, body: object) -> bool:
    """Create a deployment; return false, changing nothing, if there is one."""
    try:
        client.put(f"/api/v1/deployments/{ident}", body)
    except Refused as refused:
        if refused.code == "rev_conflict":  # no rev was sent, so somebody has it already
            return False
        raise
    return True

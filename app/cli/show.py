"""How the command line shows things: tables and lines for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from app.models.event import RESET

_WIDTH = 160


def as_json(value: Any) -> None:
    """Print a value as JSON, indented."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def as_json_line(value: Any) -> None:
    """Print a value as one line of JSON."""
    click.echo(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print columns, each as wide as its widest cell; ``None`` is shown as a dash."""
    cells = [list(head), *(["-" if cell is None or cell == "" else str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(head))]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def event(wire: dict[str, Any]) -> None:
    """Print one event of a run as a line: number, time, type, node, data."""
    data = wire.get("data")
    shown = short(json.dumps(data, ensure_ascii=False)) if data else ""
    clock = str(wire.get("at", ""))[11:23]
    line = f"{wire.get('seq', ''):>4}  {clock:<12}  {wire.get('type', ''):<14}  {wire.get('node') or '':<16}  {shown}"
    click.echo(line.rstrip())


def reset(wire: dict[str, Any], json_: bool) -> None:
    """Print, between two events, that those above are no longer the run's."""
    if json_:
        as_json_line({"type": RESET} | wire)
    else:
        click.echo("-- Redis lost the run's live state; its story begins anew --")


def run(wire: dict[str, Any]) -> None:
    """Print what became of a run."""
    worker = wire.get("worker") or {}
    click.echo(f"run {wire['runId']}: {wire['status']}" + (f", {wire['waitingFor']}" if wire.get("waitingFor") else ""))
    click.echo(f"  deployment {wire['deploymentId']}, variant {wire['variant']}, flow {wire['flowId']}")
    click.echo(f"  role {wire['targetRole']}, attempt {wire['attempt']}, worker {worker.get('node') or '-'}")
    if wire.get("error"):
        click.echo(f"  error {wire['error']['code']}: {wire['error']['message']}")
    if wire.get("output") is not None:
        click.echo(f"  output {json.dumps(wire['output'], ensure_ascii=False)}")


def fault(wire: dict[str, Any]) -> str:
    """Return one of the faults of a problem, or of the warnings of an import, as a line."""
    mend = f"; {wire['mend']}" if wire.get("mend") else ""
    return f"{wire.get('at') or '/'}: {wire.get('message')}{mend}"


def short(text: str) -> str:
    """Cut a text that would fill the terminal."""
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"

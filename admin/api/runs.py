"""Runs: start, look up, list, cancel, retry."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, jsonify, url_for

from admin.inputs import forced, json_object, one_of, query, seconds, some_text, whole
from admin.process import process, services
from admin.sse import blueprint as run_events
from admin.sse import wait_for_end
from app.errors import BadRequest
from app.models.run import Run, RunStatus
from app.ports import RunFilter
from app.runs.replay import replay

MAX_WAIT_S = 60

blueprint = Blueprint("runs", __name__)
blueprint.register_blueprint(run_events)

STATUS = one_of(status.value for status in RunStatus)
FILTERS = {"deployment": some_text, "variant": some_text, "role": some_text, "status": STATUS, "session": some_text}


@blueprint.post("/deployments/<deployment_id>/runs")
def start(deployment_id: str) -> Response:
    """Accept a run: 202, ``Location``, the run and the path of its events, or those events as they come."""
    query()
    return _accepted(services().runs.start(deployment_id, json_object(optional=True)))


@blueprint.get("/runs")
def index() -> Response:
    """List runs, newest first, from the ledger."""
    asked = query(**FILTERS, after=some_text, limit=whole(1, 500))
    page = services().runs.list(run_filter(asked), after=asked.get("after"), limit=asked.get("limit", 50))
    return jsonify(items=[run.to_wire() for run in page.items], next=page.next)


@blueprint.get("/runs/<run_id>")
def show(run_id: str) -> Response:
    """Show a run, at once or (``?wait=<seconds>``) as soon as it has ended."""
    wait_s = query(wait=seconds(MAX_WAIT_S)).get("wait", 0)
    run = services().runs.show(run_id)
    return jsonify(wait_for_end(process(), run, wait_s).to_wire())


@blueprint.post("/runs/<run_id>/cancel")
def cancel(run_id: str) -> Response:
    """End a queued run, or ask a running one to stop; ``{"force": true}`` ends its process if need be."""
    query()
    return jsonify(services().runs.cancel(run_id, force=forced()).to_wire())


@blueprint.post("/runs/<run_id>/retry")
def retry(run_id: str) -> Response:
    """Start a new run with the input and meta of an ended one, resolved again."""
    query()
    if json_object(optional=True):
        raise BadRequest("a retry takes no fields: it has the input and meta of the run that it repeats")
    return _accepted(services().runs.retry(run_id))


@blueprint.post("/runs/replay")
def replay_many() -> Response:
    """Start anew the ended runs that a filter names; unless ``{"dryRun": false}`` only say which."""
    query()
    return jsonify(replay(services().runs, json_object(optional=True)).to_wire())


def run_filter(asked: dict[str, Any]) -> RunFilter:
    """Return the filter that query parameters describe."""
    status = asked.get("status")
    return RunFilter(
        deployment=asked.get("deployment"),
        variant=asked.get("variant"),
        role=asked.get("role"),
        status=None if status is None else RunStatus(status),
        session=asked.get("session"),
    )


def _accepted(run: Run) -> Response:
    events = url_for("runs.events.stream", run_id=run.run_id)
    response = run_events.of_accepted(run.run_id) or jsonify(run.to_wire() | {"events": events})
    response.status_code = 202
    response.headers["Location"] = url_for("runs.show", run_id=run.run_id)
    return response

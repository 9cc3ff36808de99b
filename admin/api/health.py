"""Questions of load balancers and monitors: alive, ready, how much."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify

from admin.inputs import query
from admin.metrics import exposition
from admin.process import process, services

blueprint = Blueprint("health", __name__)


@blueprint.get("/healthz")
def alive() -> Response:
    """Answer: whoever reads this knows that the process lives. It asks no server."""
    return jsonify(status="ok")


@blueprint.get("/readyz")
def ready() -> Response:
    """Say whether Rolecall can take and run work now, and what is in the way: 200 or 503."""
    query()
    report = process().readiness.report()
    checks = {name: check.model_dump(mode="json", exclude={"scope"}) for name, check in report.checks.items()}
    response = jsonify(ready=report.ready, checks=checks)
    if not report.ready:
        response.status_code = 503
        response.headers["Retry-After"] = "5"
    response.headers["Cache-Control"] = "no-store"
    return response


@blueprint.get("/metrics")
def metrics() -> Response:
    """Give the fleet and its queues in the text format of Prometheus."""
    return Response(exposition(services()), content_type="text/plain; version=0.0.4; charset=utf-8")

"""The HTTP API, one blueprint for each kind of thing."""

from __future__ import annotations

from flask import Flask

from admin.api import counters, deployments, flows, health, runs, workers

V1 = "/api/v1"


def install(app: Flask) -> None:
    """Mount the API."""
    for blueprint in (flows.blueprint, deployments.blueprint, runs.blueprint, counters.blueprint):
        app.register_blueprint(blueprint, url_prefix=V1)
    app.register_blueprint(workers.blueprint, url_prefix="/admin")
    app.register_blueprint(health.blueprint)

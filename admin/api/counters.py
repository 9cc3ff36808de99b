"""The counters of ``core/count``, which prove how often a node ran."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify

from admin.inputs import query
from admin.process import services

blueprint = Blueprint("counters", __name__)


@blueprint.get("/counters/<path:key>")
def show(key: str) -> Response:
    """Show a counter; one that never counted is 0."""
    query()
    return jsonify(key=key, count=services().store.counter(key))

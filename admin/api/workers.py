"""The fleet: every living instance, and the roles that they answer for."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify

from admin import fleet
from admin.inputs import query
from admin.process import services

blueprint = Blueprint("workers", __name__)


@blueprint.get("/workers")
def workers() -> Response:
    """List instances as they describe themselves, with when they were last heard, and their roles."""
    query()
    found = [fleet.instance_to_wire(instance) for instance in fleet.instances(services())]
    return jsonify(workers=found, roles=_roles())


@blueprint.get("/roles")
def roles() -> Response:
    """List the roles that somebody answers for."""
    query()
    return jsonify(roles=_roles())


def _roles() -> dict[str, object]:
    return {row.role: row.to_wire() for row in fleet.roles(services())}

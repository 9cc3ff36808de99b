"""Deployments: put, show, list, delete, and ask where a run would go."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify

from admin.inputs import json_object, query, some_text, whole
from admin.process import services

blueprint = Blueprint("deployments", __name__)


@blueprint.get("/deployments")
def index() -> Response:
    """List deployments by id."""
    page = services().catalog.deployments(**query(after=some_text, limit=whole(1, 500)))
    return jsonify(items=[deployment.to_wire() for deployment in page.items], next=page.next)


@blueprint.get("/deployments/<deployment_id>")
def show(deployment_id: str) -> Response:
    """Show a deployment."""
    query()
    return jsonify(services().catalog.deployment(deployment_id).to_wire())


@blueprint.put("/deployments/<deployment_id>")
def put(deployment_id: str) -> Response:
    """Create a deployment (201), or replace the one whose ``rev`` was sent (200)."""
    query()
    deployment, created = services().catalog.put_deployment(deployment_id, json_object())
    response = jsonify(deployment.to_wire())
    response.status_code = 201 if created else 200
    return response


@blueprint.delete("/deployments/<deployment_id>")
def delete(deployment_id: str) -> Response:
    """Delete a deployment; its runs stay."""
    query()
    services().catalog.delete_deployment(deployment_id)
    return Response(status=204)


@blueprint.post("/deployments/<deployment_id>/resolve")
def resolve(deployment_id: str) -> Response:
    """Say which variant, version and role a run would get now, and why; nothing runs."""
    query()
    found = services().runs.resolve(deployment_id, json_object(optional=True))
    return jsonify(
        variant=found.variant.label,
        flowId=found.version.flow_id,
        versionId=found.version.version_id,
        targetRole=found.target_role,
        explain=found.explain,
    )

"""Flows: import documents, look at flows and versions, publish."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify, request

from admin import fleet
from admin.inputs import JSON, YAML, flag, json_object, query, raw_body, some_text, whole
from admin.process import services
from app.models.base import Request, parse
from app.models.names import Ident
from app.roles import RoleTable

blueprint = Blueprint("flows", __name__)

PAGE = {"after": some_text, "limit": whole(1, 500)}


class PublishRequest(Request):
    """The body of ``POST /api/v1/flows/<id>/publish``."""

    version_id: Ident


@blueprint.post("/flows/import")
def import_document() -> Response:
    """Save the flows of a FlowDSL document: 201, or 200 if every version was there already."""
    asked = query(flow=some_text, publish=flag)
    raw = raw_body(JSON, *YAML)
    held = services()
    result = held.catalog.import_document(
        raw, media_type=request.mimetype, announced=fleet.announced_handlers(held), **asked
    )
    response = jsonify(result.to_wire())
    response.status_code = 201 if result.changed else 200
    return response


@blueprint.get("/flows")
def index() -> Response:
    """List flows by id."""
    page = services().catalog.flows(**query(**PAGE))
    return jsonify(items=[flow.to_wire() for flow in page.items], next=page.next)


@blueprint.get("/flows/<flow_id>")
def show(flow_id: str) -> Response:
    """Show a flow."""
    query()
    return jsonify(services().catalog.flow(flow_id).to_wire())


@blueprint.get("/flows/<flow_id>/versions")
def versions(flow_id: str) -> Response:
    """List a flow's versions without their documents, newest first."""
    page = services().catalog.versions(flow_id, **query(**PAGE))
    return jsonify(items=[version.summary() for version in page.items], next=page.next)


@blueprint.get("/flows/<flow_id>/versions/<version_id>")
def version(flow_id: str, version_id: str) -> Response:
    """Show a version with its document."""
    query()
    return jsonify(services().catalog.version(flow_id, version_id).to_wire())


@blueprint.get("/flows/<flow_id>/versions/<before>/diff/<after>")
def diff(flow_id: str, before: str, after: str) -> Response:
    """Say what is different in version ``after``, place by place."""
    query()
    old, new, changes = services().catalog.compare(flow_id, before, after)
    sides = {name: {"versionId": one.version_id, "number": one.number} for name, one in (("from", old), ("to", new))}
    return jsonify({"flowId": flow_id} | sides | {"changes": [change.to_wire() for change in changes]})


@blueprint.get("/flows/<flow_id>/deployments")
def deployments(flow_id: str) -> Response:
    """List the deployments that use a flow, each with those of its variants that do."""
    asked = query(**PAGE)
    catalog = services().catalog
    catalog.flow(flow_id)
    page = catalog.deployments(flow=flow_id, **asked)
    items = [
        {
            "id": deployment.id,
            "name": deployment.name,
            "disabled": deployment.disabled,
            "variants": [variant.to_wire() for variant in deployment.variants if variant.flow_id == flow_id],
        }
        for deployment in page.items
    ]
    return jsonify(items=items, next=page.next)


@blueprint.get("/flows/<flow_id>/roles")
def roles(flow_id: str) -> Response:
    """Say of each living role whether it can run the published version, or the one named, and if not why."""
    asked = query(version=some_text)
    held = services()
    version = held.catalog.version_to_run(flow_id, asked.get("version"))
    table = RoleTable(fleet.known_snapshot(held), held.live.queues)
    faults = {role: table.fault(role, version.needs) for role in sorted(table.roles())}
    return jsonify(
        flowId=flow_id,
        versionId=version.version_id,
        needs=version.needs,
        roles={
            role: {"eligible": fault is None} | ({} if fault is None else {"fault": fault})
            for role, fault in faults.items()
        },
    )


@blueprint.post("/flows/<flow_id>/publish")
def publish(flow_id: str) -> Response:
    """Make a version the published one: runs that start from now on use it."""
    query()
    body = parse(PublishRequest, json_object())
    return jsonify(services().catalog.publish(flow_id, body.version_id).to_wire())

"""The fleet: every living instance, the roles that they answer for, and draining both."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify, request

from admin import draining, fleet
from admin.inputs import forced, query
from admin.process import services

blueprint = Blueprint("workers", __name__)


@blueprint.get("/workers")
def workers() -> Response:
    """List instances as they describe themselves, with when they were last heard, their roles, and what is drained."""
    query()
    held = services()
    instances, drains = fleet.instances(held), held.register.drains()
    drained = fleet.Drained.of(drains)
    found = [fleet.instance_to_wire(instance, drained) for instance in instances]
    return jsonify(workers=found, roles=_roles(), drains=[drain.to_wire() for drain in drains])


@blueprint.post("/workers/<instance>/drain")
def drain_worker(instance: str) -> Response:
    """Let a worker, by instance id or node name, take no more runs and hand back those that it executes."""
    query()
    return jsonify(draining.drain_worker(services(), instance, by=_caller(), force=forced()))


@blueprint.post("/workers/<instance>/undrain")
def undrain_worker(instance: str) -> Response:
    """Let a worker take runs again, which nothing speaks against: ``force`` changes nothing."""
    query()
    forced()
    return jsonify(draining.undrain_worker(services(), instance))


@blueprint.get("/roles")
def roles() -> Response:
    """List the roles that somebody answers for, and those that are drained."""
    query()
    return jsonify(roles=_roles())


@blueprint.post("/roles/<role>/drain")
def drain_role(role: str) -> Response:
    """Let everybody who answers for a role take no more runs, now and later."""
    query()
    return jsonify(draining.drain_role(services(), role, by=_caller(), force=forced()))


@blueprint.post("/roles/<role>/undrain")
def undrain_role(role: str) -> Response:
    """Let a role take runs again, which nothing speaks against: ``force`` changes nothing."""
    query()
    forced()
    return jsonify(draining.undrain_role(services(), role))


def _roles() -> dict[str, object]:
    return {row.role: row.to_wire() for row in fleet.roles(services())}


def _caller() -> str:
    return request.remote_addr or "unknown"

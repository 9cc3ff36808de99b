"""Draining a worker or a role: whom it would leave without a worker, and the wish that the register keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from admin import fleet
from admin.fleet import Drained
from app.errors import BadRequest, Conflict, LastOfRole, NotFound
from app.models.deployment import Deployment, Variant
from app.models.heartbeat import Heartbeat
from app.models.names import check_service_role
from app.models.role import RegisterSnapshot
from app.ports import DrainKind
from app.resolver import choose_role
from app.roles import Needs, RoleTable, fold
from app.wiring import Services

PAGE = 500


def drain_role(services: Services, role: str, *, by: str, force: bool) -> dict[str, Any]:
    """Drain everybody who answers for a role, now and later; nobody needs to.

    Raises:
        BadRequest: it is no role.
        LastOfRole: variants would lose their last eligible worker, and nobody insists.
    """
    _check(role)
    if not force:
        _refuse_if_last(services, "role", role, {role})
    return {"drained": True} | services.register.drain("role", role, by=by).to_wire()


def undrain_role(services: Services, role: str) -> dict[str, Any]:
    """Let a role take runs again; nothing happens if it is not drained."""
    _check(role)
    services.register.undrain("role", role)
    return {"drained": False, "role": role}


def drain_worker(services: Services, ident: str, *, by: str, force: bool) -> dict[str, Any]:
    """Drain the worker with that instance id or node name. The node name is what is kept, so a restart drains too.

    Raises:
        NotFound: ``worker_not_found``.
        Conflict: ``not_a_worker``: it takes no messages.
        LastOfRole: variants would lose their last eligible worker, and nobody insists.
    """
    beat = _find(services, ident)
    if beat is None:
        raise NotFound.of("worker", ident)
    if not beat.pool:
        raise Conflict(f"{beat.node!r} takes no messages, so there is nothing to drain", code="not_a_worker")
    if not force:
        _refuse_if_last(services, "node", beat.node, {beat.role})
    return {"drained": True} | services.register.drain("node", beat.node, by=by).to_wire()


def undrain_worker(services: Services, ident: str) -> dict[str, Any]:
    """Let a worker take runs again, though it may be down just now. ``drained`` stays true while its role is drained.

    Raises:
        NotFound: ``worker_not_found``: no such worker lives, and none of that node name is drained.
    """
    beat = _find(services, ident)
    node = ident if beat is None else beat.node
    if not services.register.undrain("node", node) and beat is None:
        raise NotFound.of("worker", ident)
    return {"drained": beat is not None and beat.role in Drained.of(services.register.drains()).roles, "node": node}


def _check(role: str) -> None:
    try:
        check_service_role(role)
    except ValueError as error:
        raise BadRequest(str(error)) from None


def _find(services: Services, ident: str) -> Heartbeat | None:
    beats = (instance.heartbeat for instance in fleet.instances(services))
    return next((beat for beat in beats if ident in (beat.instance_id, beat.node)), None)


# --- who would be left without a worker --------------------------------------------------------------------------


def _refuse_if_last(services: Services, kind: DrainKind, name: str, roles: set[str]) -> None:
    lost = _lost(services, kind, name, roles)
    if lost:
        raise LastOfRole(f"{kind} {name!r}", [(deployment.id, variant.label) for deployment, variant in lost])


def _lost(services: Services, kind: DrainKind, name: str, roles: set[str]) -> list[tuple[Deployment, Variant]]:
    """Return the variants that somebody could run now and nobody could after the drain."""
    beats = [instance.heartbeat for instance in fleet.instances(services)]
    # A drain that was stored a moment ago may not have been heard of yet; it counts.
    stored = Drained.of(services.register.drains())
    also = (
        replace(stored, nodes=stored.nodes | {name}) if kind == "node" else replace(stored, roles=stored.roles | {name})
    )
    before, after = _table(beats, stored), _table(beats, also)
    return [
        (deployment, variant)
        for deployment, variant, needs in _concerned(services, roles)
        if _can_run(variant, needs, before) and not _can_run(variant, needs, after)
    ]


def _table(beats: list[Heartbeat], drained: Drained) -> RoleTable:
    heard = [beat.model_copy(update={"draining": True}) if drained.has(beat) else beat for beat in beats]
    return RoleTable(RegisterSnapshot(known=True, roles=fold(heard)), lambda _: {})


def _can_run(variant: Variant, needs: Needs, table: RoleTable) -> bool:
    return choose_role(variant.target_roles, needs, table, None, None) is not None


def _concerned(services: Services, roles: set[str]) -> Iterator[tuple[Deployment, Variant, Needs]]:
    """Yield every variant that may run on one of the roles, and the handlers that it needs."""
    after: str | None = None
    while True:
        page = services.catalog.deployments(after=after, limit=PAGE)
        for deployment in page.items:
            variants = [each for each in deployment.variants if not each.target_roles or roles & {*each.target_roles}]
            versions = services.catalog.versions_for(deployment) if variants else {}
            for variant in variants:
                version = versions[variant.label]
                if version is not None:
                    yield deployment, variant, version.needs
        if page.next is None:
            return
        after = page.next

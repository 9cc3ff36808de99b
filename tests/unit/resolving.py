"""What the tests of resolving share: deployments, versions and registers in a few words."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from typing import Any

from app.models.deployment import Deployment, Variant
from app.models.heartbeat import Heartbeat
from app.models.role import QueueStats, RegisterSnapshot
from app.resolver import Resolution, VersionRef, resolve
from app.roles import Needs, RoleTable, RoleView, fold


def variant(label: str, weight: int = 1, *roles: str, version_id: str | None = None) -> Variant:
    return Variant(label=label, flow_id=f"flow-{label}", version_id=version_id, weight=weight, target_roles=roles)


def deployment(*variants: Variant, **changes: Any) -> Deployment:
    fields: dict[str, Any] = {
        "id": "checkout",
        "name": "checkout",
        "description": "",
        "variants": variants,
        "sticky_by": "session",
        "validation": "warn",
        "labels": {},
        "disabled": False,
        "rev": 1,
        "created_at": "2026-11-30T21:40:00.000Z",
        "updated_at": "2026-11-30T21:40:00.000Z",
    }
    return Deployment(**fields | changes)


def versions_of(dep: Deployment, needs: Needs = ()) -> dict[str, VersionRef | None]:
    return {each.label: VersionRef(each.flow_id, each.version_id or "published", needs) for each in dep.variants}


def heartbeat(role: str, **changes: Any) -> Heartbeat:
    fields: dict[str, Any] = {
        "instance_id": "i",
        "hostname": "host",
        "role": role,
        "version": "1",
        "started_at": "2026-11-30T21:40:00Z",
        "healthy": True,
        "pid": 1,
        "executes": True,
        "concurrency": 4,
    }
    return Heartbeat.model_validate(fields | changes)


class Queues:
    """Queues by role, and how often they were read."""

    def __init__(self, stats: Mapping[str, QueueStats] | None = None) -> None:
        self.stats = stats or {}
        self.asked: list[Collection[str]] = []

    def __call__(self, roles: Collection[str]) -> Mapping[str, QueueStats]:
        self.asked.append(roles)
        return self.stats


def table(*beats: Heartbeat, queues: Queues | None = None) -> RoleTable:
    return RoleTable(RegisterSnapshot(known=True, roles=fold(beats)), queues or Queues())


def resolve_for(
    dep: Deployment, session: str | None = None, *, roles: RoleView | None = None, needs: Needs = (), **more: Any
) -> Resolution:
    arguments: dict[str, Any] = {
        "versions": versions_of(dep, needs),
        "meta": {} if session is None else {"session_id": session},
        "rng": random.Random(7),
        "default_role": None,
        "own_role": None,
    }
    return resolve(dep, roles=roles, **arguments | more)

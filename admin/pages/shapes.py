"""What pages show of roles and deployments, made of what the services say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from admin.fleet import RoleRow
from app.models.deployment import Deployment, Variant

Roles = Mapping[str, RoleRow]


@dataclass(frozen=True, slots=True)
class Chip:
    """A role with how it is. ``state``: ``up``, ``down`` or ``unknown``; ``word`` says it in full."""

    role: str
    state: str
    word: str


@dataclass(frozen=True, slots=True)
class VariantRow:
    """A variant with its share of the traffic in percent, as configured, and how its roles are."""

    variant: Variant
    share: float
    chips: Sequence[Chip]
    dead: bool
    """No role that it may run on would be given a run now."""


@dataclass(frozen=True, slots=True)
class DeploymentRow:
    """A deployment with its variants."""

    deployment: Deployment
    variants: Sequence[VariantRow]

    @property
    def dead(self) -> list[VariantRow]:
        return [row for row in self.variants if row.dead]


def chip(role: str, roles: Roles | None) -> Chip:
    """Return how a role is; ``roles`` is ``None`` where nobody knows."""
    if roles is None:
        return Chip(role, "unknown", "not known now")
    row = roles.get(role)
    if row is None or row.fault == "no_workers":
        return Chip(role, "down", "no workers")
    if row.fault is None:
        return Chip(role, "up", "healthy")
    words = {"unhealthy": "unhealthy", "draining": "draining", "does_not_execute": "runs no flows"}
    return Chip(role, "down", words.get(row.fault, row.fault))


def deployment_row(deployment: Deployment, roles: Roles | None) -> DeploymentRow:
    """Return a deployment as lists show it."""
    total = sum(variant.weight for variant in deployment.variants)
    return DeploymentRow(deployment, [_variant_row(variant, total, roles) for variant in deployment.variants])


def _variant_row(variant: Variant, total: int, roles: Roles | None) -> VariantRow:
    chips = [chip(role, roles) for role in variant.target_roles]
    if roles is None:
        dead = False
    elif chips:
        dead = all(each.state == "down" for each in chips)
    else:
        dead = not any(row.eligible for row in roles.values())
    return VariantRow(variant, 100 * variant.weight / total if total else 0.0, chips, dead)


def pinned_roles(deployments: Iterable[Deployment]) -> set[str]:
    """Return every role that some variant names."""
    return {role for each in deployments for variant in each.variants for role in variant.target_roles}


def choices(deployment: Deployment | None, roles: Roles | None) -> list[Chip]:
    """Return the roles to choose from: whoever runs flows now, and what the deployment names already."""
    live = {name for name, row in (roles or {}).items() if row.fault not in ("does_not_execute", "no_workers")}
    named = pinned_roles([deployment]) if deployment else set()
    return [chip(role, roles) for role in sorted(live | named)]

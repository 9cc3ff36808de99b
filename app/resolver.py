"""Resolving: deployment + meta + live roles -> one variant, one version, one target role, and the reasons.

Pure: the generator, the versions and what is known of roles are passed in. The order is that of the design: versions
of every variant, then the filter by roles, then the pick by weight, then the role.

Everything that an explanation may say is listed here and in :data:`app.roles.RoleFault`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import frexp, inf
from struct import Struct
from typing import Any, Literal, NamedTuple, Protocol

from app.errors import Conflict, NoHealthyVariant
from app.models.deployment import Deployment, Variant
from app.roles import Needs, RoleFault, RoleView

VariantFault = RoleFault | Literal["flow_not_published", "version_not_found", "no_role", "zero_weight"]
"""Why a variant is not picked. ``no_role``: nobody says who is healthy, and there is no role that an un-pinned variant
could go to. A variant with ``zero_weight`` alone is eligible all the same; it is merely never picked."""

RoleReason = Literal["only_role", "most_free", "default_role", "own_role", "first_role"]
"""Why a role was chosen. ``first_role``: nobody says who is healthy, so it is the first that the variant names."""

PickedBy = Literal["sticky", "draw", "only"]

_READ_BITS = Struct(">Q").unpack_from


class Random(Protocol):
    """Anything like :class:`random.Random`."""

    def random(self) -> float:
        """Return a number of [0, 1)."""


@dataclass(frozen=True, slots=True)
class VersionRef:
    """The version that a variant would run, and the handlers that it needs."""

    flow_id: str
    version_id: str
    needs: Needs = ()


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a run is given. ``explain`` is the wire shape that is stored with the run."""

    variant: Variant
    version: VersionRef
    target_role: str
    explain: dict[str, Any]


class RoleChoice(NamedTuple):
    role: str
    reason: RoleReason


def resolve(
    deployment: Deployment,
    versions: Mapping[str, VersionRef | None],
    meta: dict[str, Any],
    rng: Random,
    roles: RoleView | None,
    default_role: str | None,
    own_role: str | None,
    snapshot_age_ms: int = 0,
) -> Resolution:
    """Pick a variant, its version and its target role.

    Args:
        deployment: What the caller named; that it exists is the caller's to find out.
        versions: By label: the pinned version, else the published one, else ``None``.
        meta: The run's; holds the sticky value.
        rng: Draws where there is no sticky value.
        roles: Who is alive; ``None`` where nobody says so, and then every variant is considered.
        default_role: ``DEFAULT_ROLE``; for variants that name no role.
        own_role: The role of the process that handles the request; counts only if workers of it are eligible.
        snapshot_age_ms: How old ``roles`` is; for the explanation.

    Raises:
        Conflict: ``deployment_disabled``, ``flow_not_published`` or ``no_positive_weight``.
        NoHealthyVariant: no variant can run now.
    """
    if deployment.disabled:
        raise Conflict(f"deployment {deployment.id!r} is disabled; enable it first", code="deployment_disabled")
    judge = _Judge(roles, default_role, own_role)
    candidates: list[dict[str, Any]] = []
    left: list[Variant] = []
    total = 0
    for variant in deployment.variants:
        candidate = judge.candidate(variant, versions.get(variant.label))
        candidates.append(candidate)
        if candidate["eligible"] and variant.weight:
            left.append(variant)
            total += variant.weight
    explain: dict[str, Any] = {
        "candidates": candidates,
        "picked": None,
        "by": None,
        "role": None,
        "roleReason": None,
        "snapshotAgeMs": snapshot_age_ms,
    }
    if not left:
        raise _refusal(deployment, versions, explain)
    for candidate in candidates:
        if candidate["eligible"]:
            candidate["effective"] = candidate["weight"] / total

    sticky = deployment.sticky_value(meta)
    picked: Variant
    by: PickedBy
    if len(left) == 1:
        picked, by = left[0], "only"
    elif sticky is not None:
        key, value = sticky
        picked, by = pick_sticky(deployment.id, value, left), "sticky"
        explain["stickyKey"] = key
    else:
        picked, by = draw(left, total, rng), "draw"

    version = versions[picked.label]
    choice = None if version is None else choose_role(picked.target_roles, version.needs, roles, default_role, own_role)
    if version is None or choice is None:  # a plain function may have changed its mind since it was asked first
        raise _refusal(deployment, versions, explain)
    explain |= {"picked": picked.label, "by": by, "role": choice.role, "roleReason": choice.reason}
    if choice.reason == "most_free" and roles is not None:
        _show_free(candidates, picked.label, roles)
    return Resolution(picked, version, choice.role, explain)


def choose_role(
    target_roles: Sequence[str], needs: Needs, roles: RoleView | None, default_role: str | None, own_role: str | None
) -> RoleChoice | None:
    """Choose the role that a run of a variant goes to, now or in a later attempt; ``None`` if none is eligible.

    Of several eligible roles it is the one with the most free capacity, in a tie the one named first (for a variant
    that names none: first by name).
    """
    if roles is None:
        if target_roles:
            return RoleChoice(target_roles[0], "first_role")
        if default_role:
            return RoleChoice(default_role, "default_role")
        return RoleChoice(own_role, "own_role") if own_role else None
    if not target_roles:
        if default_role and roles.eligible(default_role, needs):
            return RoleChoice(default_role, "default_role")
        if own_role and roles.eligible(own_role, needs):
            return RoleChoice(own_role, "own_role")
    able = [role for role in target_roles or sorted(roles.roles()) if roles.eligible(role, needs)]
    if not able:
        return None
    return RoleChoice(able[0], "only_role") if len(able) == 1 else RoleChoice(max(able, key=roles.free), "most_free")


def pick_sticky(deployment_id: str, value: str, variants: Collection[Variant]) -> Variant:
    """Pick by weighted rendezvous hashing: each variant draws its own number from the hash of (deployment, value,
    label) and the best number wins. A variant that comes or goes moves nobody else's sessions.

    ``variants`` is not empty and every weight is positive.
    """
    # Lengths keep ("a", "bc") and ("ab", "c") apart; nothing follows the label, so it needs none.
    prefix = f"{len(deployment_id)}:{deployment_id}{len(value)}:{value}".encode("utf-8", "surrogatepass")
    best: Variant | None = None
    best_score = inf
    for variant in variants:
        (bits,) = _READ_BITS(blake2b(prefix + variant.label.encode()).digest())
        # 52 bits and a half make a number strictly between 0 and 1 that a float holds exactly.
        u = ((bits >> 12) + 0.5) * 2.0**-52
        # -ln(u) > 1 - u, so most are beaten without a logarithm. The margin is more than what minus_ln may be off by.
        if (1.0 - u) * 0.999999 > best_score * variant.weight:
            continue
        # An exponential variate of rate `weight`: the least of several is of variant i with probability w_i / sum(w).
        score = minus_ln(u) / variant.weight
        if best is None or score < best_score or (score == best_score and variant.label < best.label):
            best, best_score = variant, score
    if best is None:
        raise ValueError("there is no variant to pick from")
    return best


def minus_ln(u: float) -> float:
    """Return ``-ln(u)`` for 0 < ``u`` < 1, bit for bit the same on every machine.

    ``math.log`` is the C library's, and C libraries differ in the last bit, which would let two processes disagree
    about a session. Here are only operations that IEEE 754 fixes: ``ln m = 2 atanh((m - 1) / (m + 1))``, the first
    terms of its series, for ``m`` within sqrt(1/2)..sqrt(2). The relative error is below 1e-7, and so is the error of
    a variant's share.
    """
    m, exponent = frexp(u)
    if m < 0.7071067811865476:
        m += m
        exponent -= 1
    s = (m - 1.0) / (m + 1.0)
    q = s * s
    return exponent * -0.6931471805599453 - s * (2.0 + q * (2 / 3 + q * (2 / 5 + q * (2 / 7))))


def draw(variants: Sequence[Variant], total: int, rng: Random) -> Variant:
    """Draw by weight. ``total`` is the sum of the weights, all of them positive."""
    point = rng.random() * total
    for variant in variants:
        point -= variant.weight
        if point < 0:
            return variant
    return variants[-1]


class _Judge:
    """Says of each variant whether it can run now, in the words of the explanation."""

    __slots__ = ("_default_role", "_own_role", "_roles", "_seen")

    def __init__(self, roles: RoleView | None, default_role: str | None, own_role: str | None) -> None:
        self._roles = roles
        self._default_role = default_role
        self._own_role = own_role
        # Variants often share roles and flow; what was found out for one is not found out again.
        self._seen: dict[tuple[Sequence[str], Needs], tuple[dict[str, Any], list[str]]] = {}

    def candidate(self, variant: Variant, version: VersionRef | None) -> dict[str, Any]:
        """Return the variant's entry in ``explain``."""
        seen: dict[str, Any]
        if version is None:
            seen, reasons = {}, ["flow_not_published" if variant.version_id is None else "version_not_found"]
        else:
            seen, reasons = self._look(variant.target_roles, version.needs)
        weight = variant.weight
        return {
            "label": variant.label,
            "weight": weight,
            "effective": 0.0,
            "eligible": not reasons,
            "reasons": reasons if weight else [*reasons, "zero_weight"],
            "roles": seen,
        }

    def _look(self, target_roles: Sequence[str], needs: Needs) -> tuple[dict[str, Any], list[str]]:
        """Return what is known of each role that counts, and why none of them is eligible (empty if one is)."""
        key = target_roles, needs
        found = self._seen.get(key)
        if found is None:
            if self._roles is not None:
                found = _ask(self._roles, target_roles or self._anyone(), needs)
            else:
                found = {}, [] if target_roles or self._default_role or self._own_role else ["no_role"]
            self._seen[key] = found
        return found

    def _anyone(self) -> list[str]:
        roles = self._roles.roles() if self._roles is not None else ()
        return sorted({*roles, *filter(None, (self._default_role, self._own_role))})


def _ask(view: RoleView, roles: Collection[str], needs: Needs) -> tuple[dict[str, Any], list[str]]:
    seen: dict[str, Any] = {}
    faults: list[str] = []
    eligible = False
    for role in roles:
        fault = view.fault(role, needs)
        if fault is None:
            eligible = True
            seen[role] = {"healthy": True, "eligible": True, "free": None}
        else:
            seen[role] = {"healthy": view.healthy(role), "eligible": False, "free": None, "reason": fault}
            if fault not in faults:
                faults.append(fault)
    if not seen:
        return seen, ["no_workers"]
    return seen, [] if eligible else faults


def _show_free(candidates: list[dict[str, Any]], picked: str, roles: RoleView) -> None:
    """Add the free capacity that decided to the picked variant's roles; elsewhere it was not looked at."""
    for candidate in candidates:
        if candidate["label"] == picked:
            candidate["roles"] = {
                role: entry | {"free": roles.free(role)} if entry["eligible"] else entry
                for role, entry in candidate["roles"].items()
            }


def _refusal(
    deployment: Deployment, versions: Mapping[str, VersionRef | None], explain: dict[str, Any]
) -> Conflict | NoHealthyVariant:
    """Return why nothing is left: that nothing could ever be picked is not the same as that nothing can run now."""
    name, variants = f"deployment {deployment.id!r}", deployment.variants
    if all(versions.get(variant.label) is None for variant in variants):
        flows = ", ".join(sorted({repr(variant.flow_id) for variant in variants}))
        return Conflict(
            f"{name} has nothing to run: no version of {flows} is published; publish one", code="flow_not_published"
        )
    if not any(variant.weight for variant in variants):
        return Conflict(f"every variant of {name} has weight 0; give one a positive weight", code="no_positive_weight")
    candidates = explain["candidates"]
    shown = [f"{candidate['label']} ({', '.join(candidate['reasons'])})" for candidate in candidates[:10]]
    if len(candidates) > len(shown):
        shown.append(f"and {len(candidates) - len(shown)} more")
    return NoHealthyVariant(f"{name} has no variants with healthy target roles: {', '.join(shown)}", explain=explain)

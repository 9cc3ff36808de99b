"""Roles: heartbeats folded into what a resolver asks, and the views that answer it.

A role is *healthy* when a registered instance of it reports ``healthy: true``. It is *eligible* for a version when one
such instance also executes runs, is not draining, and has a handler for every node of the version that needs one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal, Protocol

from app.models.heartbeat import Heartbeat
from app.models.role import Capability, QueueStats, RegisterSnapshot, RoleSummary

Needs = tuple[tuple[str, ...], ...]
"""For each node that needs a handler, the refs of which an instance must have at least one."""

Queues = Callable[[Collection[str]], Mapping[str, QueueStats]]
"""Reads the queues of some roles, live; a role that it does not return has an empty queue."""

RoleFault = Literal["no_workers", "unhealthy", "does_not_execute", "draining", "missing_handler"]
"""Why a role is not eligible. The conditions are tested in this order, and a role of several instances is told the
one at which the best of them failed."""

_FAULTS: tuple[RoleFault, ...] = ("unhealthy", "does_not_execute", "draining", "missing_handler")


class RoleView(Protocol):
    """What a resolver may ask about roles. A view is made for one resolve and gives the same answer twice."""

    def roles(self) -> Collection[str]:
        """Return every role that the view knows of."""

    def healthy(self, role: str) -> bool: ...
    def eligible(self, role: str, needs: Needs) -> bool: ...
    def fault(self, role: str, needs: Needs) -> RoleFault | None:
        """Return why the role is not eligible, or ``None`` if it is."""

    def free(self, role: str) -> int:
        """Return how many more runs the role's instances could start now; negative when more are waiting."""


def fold(heartbeats: Iterable[Heartbeat]) -> dict[str, RoleSummary]:
    """Count instances by role and by what they can do."""
    workers: dict[str, dict[Capability, int]] = {}
    slots: dict[str, dict[Capability, int]] = {}
    for beat in heartbeats:
        capability = capability_of(beat)
        counted = workers.setdefault(beat.role, {})
        counted[capability] = counted.get(capability, 0) + 1
        summed = slots.setdefault(beat.role, {})
        summed[capability] = summed.get(capability, 0) + beat.concurrency
    return {role: RoleSummary(counted, slots[role]) for role, counted in workers.items()}


def capability_of(beat: Heartbeat) -> Capability:
    """Return what makes the instance the same as others to a resolver."""
    return Capability(beat.healthy, beat.executes, beat.draining, frozenset(beat.nodes))


def is_role_healthy(roles: Mapping[str, RoleSummary], role: str) -> bool:
    """Return whether a registered instance of the role reports itself healthy (the seed's rule)."""
    summary = roles.get(role)
    return summary is not None and any(capability.healthy for capability in summary.workers)


class RoleTable:
    """The view of a register's snapshot. The queues are read once, and only if somebody asks what is free."""

    __slots__ = ("_queues", "_roles", "_stats")

    def __init__(self, snapshot: RegisterSnapshot, queues: Queues) -> None:
        self._roles = snapshot.roles
        self._queues = queues
        self._stats: Mapping[str, QueueStats] | None = None

    def roles(self) -> Collection[str]:
        return self._roles.keys()

    def healthy(self, role: str) -> bool:
        return is_role_healthy(self._roles, role)

    def eligible(self, role: str, needs: Needs) -> bool:
        return self.fault(role, needs) is None

    def fault(self, role: str, needs: Needs) -> RoleFault | None:
        summary = self._roles.get(role)
        if summary is None or not summary.workers:
            return "no_workers"
        furthest = 0
        for capability in summary.workers:
            if not capability.healthy:
                continue
            if not capability.executes:
                failed = 1
            elif capability.draining:
                failed = 2
            elif not capability.covers(needs):
                failed = 3
            else:
                return None
            furthest = max(furthest, failed)
        return _FAULTS[furthest]

    def free(self, role: str) -> int:
        summary = self._roles.get(role)
        if summary is None:
            return 0
        if self._stats is None:
            self._stats = self._queues([name for name, each in self._roles.items() if each.slots])
        stats = self._stats.get(role, QueueStats())
        return summary.slots - stats.running - stats.queued


class PlainRoles:
    """The view of the seed's plain ``role -> bool``: what is healthy is eligible, and nothing is known to be free.

    Of a function no list of roles can be had, so an un-pinned variant goes to the default or the own role or nowhere.
    """

    __slots__ = ("_check", "_names")

    def __init__(self, healthy: Mapping[str, bool] | Callable[[str], bool]) -> None:
        if callable(healthy):
            self._names: Collection[str] = ()
            self._check: Callable[[str], bool | None] = healthy
        else:
            self._names = tuple(healthy)
            self._check = healthy.get

    @classmethod
    def of(cls, healthy_roles: Iterable[str]) -> PlainRoles:
        """Ask "what if exactly these roles were healthy"."""
        return cls(dict.fromkeys(healthy_roles, True))

    def roles(self) -> Collection[str]:
        return self._names

    def healthy(self, role: str) -> bool:
        return bool(self._check(role))

    def eligible(self, role: str, needs: Needs) -> bool:  # noqa: ARG002 - the seed's rule knows of no handlers
        return self.healthy(role)

    def fault(self, role: str, needs: Needs) -> RoleFault | None:  # noqa: ARG002
        answer = self._check(role)
        return None if answer else "no_workers" if answer is None else "unhealthy"

    def free(self, role: str) -> int:  # noqa: ARG002
        return 0

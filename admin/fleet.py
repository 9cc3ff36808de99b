"""The fleet as answers and pages show it: instances and roles, from the register and the live queues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from app.clock import to_rfc3339
from app.errors import RegisterUnknown, ServerUnavailable
from app.models.heartbeat import Heartbeat, RegisteredInstance, WorkerState
from app.models.role import QueueStats, RegisterSnapshot
from app.ports import Drain
from app.roles import RoleTable
from app.wiring import Services


@dataclass(frozen=True, slots=True)
class RoleRow:
    """One role. ``oldest_queued_s``: how long its first run has been waiting; ``None`` if none is."""

    role: str
    healthy: bool
    eligible: bool
    workers: int
    slots: int
    free: int
    queued: int
    running: int
    oldest_queued_s: float | None
    fault: str | None
    """Why it would be given no run now, whatever the run needs; see :data:`app.roles.RoleFault`."""
    drained: bool
    """Whether it is drained as a whole: whoever answers for it is told to take no runs."""

    @property
    def draining(self) -> bool:
        """Whether those who could take its runs all drain."""
        return self.fault == "draining"

    def to_wire(self) -> dict[str, Any]:
        return {
            "healthy": self.healthy,
            "eligible": self.eligible,
            "workers": self.workers,
            "free": self.free,
            "queued": self.queued,
            "oldestQueuedS": self.oldest_queued_s,
            "draining": self.draining,
            "drained": self.drained,
        }


@dataclass(frozen=True, slots=True)
class Drained:
    """What is drained, as the register keeps it: who is told to take no runs, whether it has heard of that or not."""

    nodes: frozenset[str]
    roles: frozenset[str]

    @classmethod
    def of(cls, drains: Iterable[Drain]) -> Drained:
        drains = list(drains)
        names = {kind: frozenset(drain.name for drain in drains if drain.kind == kind) for kind in ("node", "role")}
        return cls(names["node"], names["role"])

    def has(self, beat: Heartbeat) -> bool:
        return beat.node in self.nodes or beat.role in self.roles


def known_snapshot(services: Services) -> RegisterSnapshot:
    """Return the register's snapshot.

    Raises:
        RegisterUnknown: nobody can say who is alive.
    """
    try:
        snapshot, _ = services.snapshots.get()
    except ServerUnavailable as error:
        raise RegisterUnknown(f"nobody can say who is alive: {error}") from error
    if not snapshot.known:
        raise RegisterUnknown("nobody can say yet who is alive: the register was out of reach until a moment ago")
    return snapshot


def roles(services: Services, also: Iterable[str] = ()) -> list[RoleRow]:
    """Return every role of the register and every drained one, and those named in ``also``, by name.

    Raises:
        RegisterUnknown, ServerUnavailable: it cannot be told.
    """
    snapshot = known_snapshot(services)
    drained = Drained.of(services.register.drains()).roles
    names = sorted(snapshot.roles.keys() | drained | set(also))
    queues = services.live.queues(names)
    table = RoleTable(snapshot, lambda _: queues)
    return [_row(name, snapshot, table, queues.get(name, QueueStats()), name in drained) for name in names]


def _row(name: str, snapshot: RegisterSnapshot, table: RoleTable, queue: QueueStats, drained: bool) -> RoleRow:
    summary = snapshot.roles.get(name)
    fault = table.fault(name, ())
    waited_s = None if queue.oldest_ms is None else round(max(0, snapshot.at_ms - queue.oldest_ms) / 1000, 1)
    return RoleRow(
        role=name,
        healthy=table.healthy(name),
        eligible=fault is None,
        workers=0 if summary is None else summary.count,
        slots=0 if summary is None else summary.slots,
        free=max(0, table.free(name)),
        queued=queue.queued,
        running=queue.running,
        oldest_queued_s=waited_s,
        fault=fault,
        drained=drained,
    )


def instances(services: Services) -> list[RegisteredInstance]:
    """Return every living instance, by role and node.

    Raises:
        RegisterUnknown: it cannot be told.
    """
    known_snapshot(services)
    try:
        return services.register.instances()
    except ServerUnavailable as error:
        raise RegisterUnknown(f"nobody can say who is alive: {error}") from error


def announced_handlers(services: Services) -> frozenset[str]:
    """Return the refs of every handler that some living instance has; none where nobody knows."""
    try:
        snapshot = known_snapshot(services)
    except RegisterUnknown:
        return frozenset()
    return frozenset().union(*(each.nodes for summary in snapshot.roles.values() for each in summary.workers))


def instance_to_wire(instance: RegisteredInstance, drained: Drained) -> dict[str, Any]:
    """Return the heartbeat with what the register knows of it."""
    beat = instance.heartbeat
    seen = {"last_seen": to_rfc3339(instance.last_seen_ms), "state": beat.state.value, "drained": drained.has(beat)}
    return beat.to_wire() | seen


def count_states(found: Iterable[RegisteredInstance]) -> dict[tuple[str, WorkerState], int]:
    """Count instances by role and state."""
    counted: dict[tuple[str, WorkerState], int] = {}
    for instance in found:
        key = (instance.heartbeat.role, instance.heartbeat.state)
        counted[key] = counted.get(key, 0) + 1
    return counted

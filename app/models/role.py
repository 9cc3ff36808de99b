"""What the register knows of roles: instances counted by what they can do, so that size does not matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Capability:
    """What makes two instances of one role the same to a resolver."""

    healthy: bool
    executes: bool
    draining: bool
    nodes: frozenset[str]
    """Refs of the handlers they have."""

    def runs(self, needs: tuple[tuple[str, ...], ...]) -> bool:
        """Return whether such an instance may be given a flow with these needs now."""
        return self.healthy and self.executes and not self.draining and self.covers(needs)

    def covers(self, needs: tuple[tuple[str, ...], ...]) -> bool:
        """Return whether it has at least one candidate of every node that needs a handler."""
        has = self.nodes
        for candidates in needs:  # noqa: SIM110 - every resolve asks this for every variant; a generator takes twice as long
            if has.isdisjoint(candidates):
                return False
        return True


@dataclass(frozen=True, slots=True)
class RoleSummary:
    """One role: how many instances of each capability, and the slots they have together."""

    workers: Mapping[Capability, int]
    concurrency: Mapping[Capability, int]

    @property
    def count(self) -> int:
        return sum(self.workers.values())

    @property
    def slots(self) -> int:
        """How many runs those instances can execute at a time that would take one now."""
        return sum(
            slots
            for capability, slots in self.concurrency.items()
            if capability.healthy and capability.executes and not capability.draining
        )


@dataclass(frozen=True, slots=True)
class RegisterSnapshot:
    """The register at one moment. ``known`` is false in and shortly after a gap: then nobody can say who lives."""

    known: bool
    roles: Mapping[str, RoleSummary] = field(default_factory=dict)
    at_ms: int = 0
    """The server's time at which it was taken."""
    quiet_until_ms: int = 0
    """No lease is broken before this server time (a gap makes every lease look dead)."""


@dataclass(frozen=True, slots=True)
class QueueStats:
    """A role's queue by Rolecall's own count. ``oldest_ms``: the server's time since which its first run waits."""

    queued: int = 0
    running: int = 0
    oldest_ms: int | None = None

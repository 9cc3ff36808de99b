"""The register in memory: for tests, and for a Rolecall that is one process."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

from app.clock import Clock
from app.models.heartbeat import Heartbeat, RegisteredInstance
from app.models.role import RegisterSnapshot
from app.ports import BeatReply, Drain, DrainKind
from app.register.times import Times
from app.roles import fold


@dataclass(slots=True)
class _Pulse:
    """When anybody was last heard, and when the last gap ended."""

    at_ms: int | None = None
    gap_ms: int | None = None


class MemoryRegister:
    """Implements :class:`app.ports.Register`. Safe to share between threads. ``clock`` is the server's."""

    def __init__(self, clock: Clock, *, interval_ms: int, ttl_ms: int, lease_ttl_ms: int) -> None:
        self._clock = clock
        self._times = Times(interval_ms, ttl_ms, lease_ttl_ms)
        self._lock = Lock()
        self._pulse = _Pulse()
        self._instances: dict[str, RegisteredInstance] = {}
        self._drains: dict[tuple[DrainKind, str], Drain] = {}

    def ping(self) -> None:
        """Nothing can be wrong with it."""

    def beat(self, heartbeat: Heartbeat, *, expected_ms: int | None = None) -> BeatReply:
        with self._lock:
            now = self._clock()
            if expected_ms is not None and abs(now - expected_ms) > self._times.interval_ms:
                return BeatReply(accepted=False, server_ms=now)
            gap = self._silent(now)
            if gap:
                self._pulse.gap_ms = now
            self._pulse.at_ms = now
            self._instances[heartbeat.instance_id] = RegisteredInstance(heartbeat, now)
            self._prune(now)
            drain = ("node", heartbeat.node) in self._drains or ("role", heartbeat.role) in self._drains
            return BeatReply(accepted=True, server_ms=now, gap=gap, drain=drain)

    def leave(self, instance_id: str) -> None:
        with self._lock:
            self._instances.pop(instance_id, None)

    def snapshot(self) -> RegisterSnapshot:
        with self._lock:
            now = self._clock()
            known = self._prune(now)
            gap_ms = now if self._silent(now) else self._pulse.gap_ms
            return RegisterSnapshot(
                known=known,
                roles=fold(instance.heartbeat for instance in self._instances.values()),
                at_ms=now,
                quiet_until_ms=0 if gap_ms is None else gap_ms + self._times.lease_ttl_ms,
            )

    def instances(self) -> list[RegisteredInstance]:
        with self._lock:
            self._prune(self._clock())
            return sorted(self._instances.values(), key=by_role_and_node)

    def drain(self, kind: DrainKind, name: str, *, by: str) -> Drain:
        with self._lock:
            return self._drains.setdefault((kind, name), Drain(kind, name, by, self._clock()))

    def undrain(self, kind: DrainKind, name: str) -> bool:
        with self._lock:
            return self._drains.pop((kind, name), None) is not None

    def drains(self) -> list[Drain]:
        with self._lock:
            return [self._drains[key] for key in sorted(self._drains)]

    def close(self) -> None:
        """Nothing to give back."""

    def _silent(self, now: int) -> bool:
        """Return whether a gap is on: instances are registered, and none was heard of for too long."""
        at = self._pulse.at_ms
        # A clock that was set back far makes every stamp as meaningless as a pause does.
        return at is not None and bool(self._instances) and abs(now - at) > self._times.silence_ms

    def _prune(self, now: int) -> bool:
        """Forget who is gone, and return true; in and shortly after a gap nobody can say who that is."""
        if self._silent(now):
            return False
        gap_ms = self._pulse.gap_ms
        if gap_ms is not None and gap_ms > now:
            gap_ms = self._pulse.gap_ms = now
        if gap_ms is not None and now - gap_ms < self._times.unknown_ms:
            return False
        for ident, instance in list(self._instances.items()):
            if now - instance.last_seen_ms >= self._times.ttl_ms:
                del self._instances[ident]
            elif instance.last_seen_ms > now:
                # The clock was set back: the time to live begins anew, or it would take hours to notice a death.
                self._instances[ident] = RegisteredInstance(instance.heartbeat, now)
        return True


def by_role_and_node(instance: RegisteredInstance) -> tuple[str, str, str]:
    """Order instances as lists show them."""
    heartbeat = instance.heartbeat
    return heartbeat.role, heartbeat.node, heartbeat.instance_id

"""What a process says of itself: one heartbeat every few seconds, the leases of its runs, and goodbye."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from app.clock import Monotonic, to_rfc3339
from app.errors import ServerUnavailable
from app.health import Health, is_healthy
from app.models.heartbeat import Heartbeat
from app.ports import Live, Register

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a process is, for as long as it lives. ``started_ms``: this machine's time."""

    instance_id: str
    hostname: str
    role: str
    version: str
    pid: int
    node: str
    started_ms: int


@dataclass(frozen=True, slots=True)
class Activity:
    """What a process is doing right now."""

    executes: bool = False
    pool: str = ""
    concurrency: int = 0
    active: int = 0
    reserved: int = 0
    last_consumed_ms: int | None = None
    draining: bool = False


class Pulse:
    """Composes and sends the heartbeats of one process. Thread-safe: beats are sent one after the other.

    ``activity`` tells what the process is doing, ``leases`` the ``(run_id, token)`` of the runs that it executes.
    ``told`` is called with what each answer says of draining; it returns whether that changes what is to be announced,
    which is then done at once.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        register: Register,
        live: Live,
        health: Health,
        activity: Callable[[], Activity],
        nodes: frozenset[str],
        leases: Callable[[], list[tuple[str, str]]],
        told: Callable[[bool], bool],
        lease_ttl_ms: int,
        monotonic: Monotonic,
    ) -> None:
        self.identity = identity
        self._register = register
        self._live = live
        self._health = health
        self._activity = activity
        self._nodes = tuple(sorted(nodes))
        self._leases = leases
        self._told = told
        self._lease_ttl_ms = lease_ttl_ms
        self._monotonic = monotonic
        # The server's clock minus ours, from its last answer: tells a beat that was stuck on the way from a fresh one.
        self._server_offset_ms: float | None = None
        self._silent = False
        self._left = False
        self._turn = Lock()

    def compose(self) -> Heartbeat:
        """Examine the process and return its heartbeat."""
        activity, checks, who = self._activity(), self._health.examine(), self.identity
        consumed = activity.last_consumed_ms
        return Heartbeat(
            instance_id=who.instance_id,
            hostname=who.hostname,
            role=who.role,
            version=who.version,
            started_at=to_rfc3339(who.started_ms),
            healthy=is_healthy(checks),
            checks=checks,
            pid=who.pid,
            node=who.node,
            executes=activity.executes,
            pool=activity.pool,
            concurrency=activity.concurrency,
            active=activity.active,
            reserved=activity.reserved,
            last_consumed_at=None if consumed is None else to_rfc3339(consumed),
            draining=activity.draining,
            nodes=self._nodes,
        )

    def beat(self) -> None:
        """Renew the leases of this process's runs and announce it. Redis being away is said once, not each time."""
        with self._turn:
            if not self._left:
                self._beat()

    def _beat(self) -> None:
        try:
            self._renew()
            drain = self._announce(self.compose())
            if drain is not None and self._told(drain):
                self._announce(self.compose())
        except ServerUnavailable as error:
            if not self._silent:
                logger.warning("no heartbeat could be sent: %s", error)
            self._silent = True
        else:
            if self._silent:
                logger.info("heartbeats are sent again")
            self._silent = False

    def leave(self) -> None:
        """Say goodbye. No later beat of this process is sent."""
        # After the beat under way, which would announce this process again.
        with self._turn:
            self._left = True
            try:
                self._register.leave(self.identity.instance_id)
            except ServerUnavailable as error:
                logger.warning("goodbye could not be said and the register will notice by itself: %s", error)

    def _renew(self) -> None:
        held = self._leases()
        if held:
            # Whoever lost a lease hears of it from its own line to the live state (app.runs.attempt).
            self._live.renew(held, ttl_ms=self._lease_ttl_ms)

    def _announce(self, heartbeat: Heartbeat) -> bool | None:
        """Send a heartbeat; return whether this process is to drain, or ``None`` if nobody said."""
        for _ in range(2):
            sent_ms = self._monotonic() * 1000
            offset = self._server_offset_ms
            reply = self._register.beat(heartbeat, expected_ms=None if offset is None else int(sent_ms + offset))
            self._server_offset_ms = reply.server_ms - self._monotonic() * 1000
            if reply.gap:
                logger.warning(
                    "nobody's heartbeat was heard for a while: the register was frozen, restarted or emptied"
                )
            if reply.accepted:
                return reply.drain
            # The server's clock was set, or this beat was stuck on the way: now we know its time and say it afresh.
        return None

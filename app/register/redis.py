"""The register on Redis: one script for each call, one round trip.

Keys, all under the prefix:

======================  =========================================================================================
``register:pulse``      hash: ``at`` (when anybody was last heard), ``epoch`` (made when the server was empty),
                        ``gap`` (when the last gap ended), ``noted`` (the epoch in which that was)
``register:seen``       sorted set of instances by the time of their last heartbeat
``register:beats``      hash: instance -> heartbeat
``register:entries``    hash: instance -> ``slots nodes-hash class``, what it adds to the counts
``register:workers``    hash: class -> its number of instances; a class is ``[role, healthy, executes,
                        draining, nodes-hash]``
``register:slots``      hash: class -> sum of their concurrency
``register:nodes``      hash: nodes-hash -> list of handler refs, stored once however many instances have them
``register:holders``    hash: nodes-hash -> number of instances
``register:drains``     hash: ``node:<name>`` or ``role:<name>`` -> ``{"at", "by"}``: who is to take no new runs
======================  =========================================================================================

``worker.heartbeat`` is the channel on which heartbeats are published. All times are the server's. All scripts run
also when memory is full: a register that cannot hear would declare everybody dead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

from app.models.heartbeat import Heartbeat, RegisteredInstance
from app.models.json_value import dumps, loads
from app.models.role import Capability, RegisterSnapshot, RoleSummary
from app.ports import BeatReply, Drain, DrainKind
from app.redis_client import RedisServer
from app.register.lua import source
from app.register.memory import by_role_and_node
from app.register.times import Times

_SCRIPTS = ("beat", "leave", "snapshot", "instances", "drain")


class RedisRegister:
    """Implements :class:`app.ports.Register`. Safe to share between threads; a forked child connects anew."""

    def __init__(
        self, url: str, *, key_prefix: str, socket_timeout_s: float, interval_ms: int, ttl_ms: int, lease_ttl_ms: int
    ) -> None:
        self._server = RedisServer(url, socket_timeout_s=socket_timeout_s)
        self._prefix = key_prefix
        self._drains = f"{key_prefix}register:drains"
        self._times = Times(interval_ms, ttl_ms, lease_ttl_ms)
        self._scripts = {name: self._server.script(source(name)) for name in _SCRIPTS}
        # The server's memory as this process has seen it: another epoch, or none, means that it was emptied.
        self._epoch = ""

    def ping(self) -> None:
        self._server.ping()

    def beat(self, heartbeat: Heartbeat, *, expected_ms: int | None = None) -> BeatReply:
        nodes = dumps(sorted(set(heartbeat.nodes)))
        nodes_hash = blake2b(nodes.encode(), digest_size=12).hexdigest()
        kind = [heartbeat.role, heartbeat.healthy, heartbeat.executes, heartbeat.draining, nodes_hash]
        accepted, now, gap, epoch, drain = self._run(
            "beat",
            heartbeat.instance_id,
            dumps(heartbeat.to_wire()),
            f"{heartbeat.concurrency} {nodes_hash} {dumps(kind)}",
            nodes_hash,
            nodes,
            "" if expected_ms is None else expected_ms,
            self._times.interval_ms,
            heartbeat.node,
            heartbeat.role,
        )
        self._epoch = epoch or self._epoch
        return BeatReply(accepted=bool(accepted), server_ms=now, gap=bool(gap), drain=bool(drain))

    def leave(self, instance_id: str) -> None:
        self._run("leave", instance_id)

    def snapshot(self) -> RegisterSnapshot:
        more = 1
        while more:  # a second time only if a whole fleet died at once: one call prunes a bounded number
            known, now, gap_ms, epoch, more, workers, slots, nodes = self._run("snapshot")
            self._epoch = epoch or self._epoch
        return RegisterSnapshot(
            known=bool(known),
            roles=_roles(_pairs(workers), dict(_pairs(slots)), dict(_pairs(nodes))),
            at_ms=now,
            quiet_until_ms=0 if gap_ms < 0 else gap_ms + self._times.lease_ttl_ms,
        )

    def instances(self) -> list[RegisteredInstance]:
        more = 1
        while more:
            more, beats, seen = self._run("instances")
        arrivals = {ident: int(float(score)) for ident, score in _pairs(seen)}
        found = (
            RegisteredInstance(Heartbeat.model_validate(loads(text)), arrivals[ident]) for ident, text in _pairs(beats)
        )
        return sorted(found, key=by_role_and_node)

    def drain(self, kind: DrainKind, name: str, *, by: str) -> Drain:
        return _drain(f"{kind}:{name}", self._run("drain", f"{kind}:{name}", dumps(by)))

    def undrain(self, kind: DrainKind, name: str) -> bool:
        with self._server.errors():
            return bool(self._server.client.hdel(self._drains, f"{kind}:{name}"))

    def drains(self) -> list[Drain]:
        with self._server.errors():
            found: Any = self._server.client.hgetall(self._drains)
        return [_drain(key, found[key]) for key in sorted(found)]

    def close(self) -> None:
        self._server.close()

    def _run(self, name: str, *args: str | int) -> Any:
        times = self._times
        common = (self._prefix, self._epoch, times.ttl_ms, times.silence_ms, times.unknown_ms)
        return self._scripts[name](args=[*common, *args])


def _roles(workers: Iterator[tuple[str, str]], slots: dict[str, str], nodes: dict[str, str]) -> dict[str, RoleSummary]:
    refs = {nodes_hash: frozenset(loads(text)) for nodes_hash, text in nodes.items()}
    roles: dict[str, tuple[dict[Capability, int], dict[Capability, int]]] = {}
    for kind, count in workers:
        role, healthy, executes, draining, nodes_hash = loads(kind)
        capability = Capability(healthy, executes, draining, refs[nodes_hash])
        counted, summed = roles.setdefault(role, ({}, {}))
        counted[capability] = int(count)
        summed[capability] = int(slots[kind])
    return {role: RoleSummary(counted, summed) for role, (counted, summed) in roles.items()}


def _drain(key: str, text: str) -> Drain:
    kind, _, name = key.partition(":")
    stored = loads(text)
    return Drain("role" if kind == "role" else "node", name, stored["by"], stored["at"])


def _pairs(flat: Sequence[str]) -> Iterator[tuple[str, str]]:
    return zip(flat[::2], flat[1::2], strict=True)

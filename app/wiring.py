"""From settings to services. The only module that names adapters."""

from __future__ import annotations

import os
import random
import secrets
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from app.beat import Beat, LocalEntry
from app.catalog import Catalog
from app.celery import RolecallCelery
from app.clock import Clock, Monotonic, system_clock
from app.config import Settings
from app.dispatch.celery import CeleryDispatcher
from app.dispatch.memory import MemoryDispatcher
from app.health import Health, HealthCheck, load_checks
from app.live.bell import MemoryBell, RedisBell
from app.live.memory import MemoryLive
from app.live.redis import RedisLive
from app.live.streams import MemoryStreams, RedisStreams
from app.models.names import DISPATCHER
from app.models.run import WorkerRef
from app.nodes.registry import HandlerRegistry, load_handlers
from app.nodes.secrets import secrets_from
from app.ports import Bell, Dispatcher, Leaving, Live, Register, Store, Streams
from app.pulse import Activity, Identity, Pulse
from app.register.cache import SnapshotCache
from app.register.memory import MemoryRegister
from app.register.redis import RedisRegister
from app.runs import Executor, Housekeeping, Recovery, Rescue, Runs
from app.runs.choices import Choices
from app.runs.execution import Limits
from app.runs.flusher import Flusher
from app.runs.gate import Gate
from app.runs.rescue import NextRole, RescueRules
from app.runs.waiting import Waiting
from app.store.memory import MemoryStore
from app.store.mongo import MongoStore


@dataclass(slots=True)
class Services:
    """Everything that one process needs. Made after a fork; clients connect when they are first used."""

    settings: Settings
    handlers: HandlerRegistry
    store: Store
    live: Live
    bell: Bell
    streams: Streams
    register: Register
    dispatcher: Dispatcher
    snapshots: SnapshotCache
    catalog: Catalog
    runs: Runs

    def close(self) -> None:
        """Give every connection back."""
        for part in (self.bell, self.streams, self.dispatcher, self.live, self.register, self.store):
            part.close()

    def shared_checks(self) -> list[HealthCheck]:
        """Return the checks of the servers that all processes share."""
        patience_s = 2 * self.settings.socket_timeout_s
        servers: list[tuple[str, Callable[[], None]]] = [
            ("redis", self.register.ping),
            ("mongo", self.store.ping),
            ("broker", self.dispatcher.ping),
        ]
        return [HealthCheck(name, ping, "shared", patience_s) for name, ping in servers]


def build(
    settings: Settings, *, celery: RolecallCelery | None = None, handlers: HandlerRegistry | None = None
) -> Services:
    """Wire the real adapters. Nothing is connected yet. ``handlers`` saves a pool's children from loading them again.

    Raises:
        SettingError: a module of handlers cannot be loaded.
    """
    url, prefix, timeout_s = settings.redis_url, settings.key_prefix, settings.socket_timeout_s
    return _assemble(
        settings,
        store=MongoStore(settings.mongo_url, timeout_s=timeout_s),
        live=RedisLive(url, key_prefix=prefix, socket_timeout_s=timeout_s),
        bell=RedisBell(url, key_prefix=prefix, socket_timeout_s=timeout_s),
        streams=RedisStreams(url, key_prefix=prefix, socket_timeout_s=timeout_s),
        register=RedisRegister(url, key_prefix=prefix, socket_timeout_s=timeout_s, **_register_times(settings)),
        dispatcher=CeleryDispatcher(celery or RolecallCelery(settings)),
        handlers=handlers,
    )


def build_memory(settings: Settings, *, clock: Clock = system_clock, monotonic: Monotonic = time.monotonic) -> Services:
    """Wire everything in memory: a whole Rolecall inside one process, without a server."""
    live = MemoryLive(clock)
    return _assemble(
        settings,
        store=MemoryStore(),
        live=live,
        bell=MemoryBell(live),
        streams=MemoryStreams(),
        register=MemoryRegister(clock, **_register_times(settings)),
        dispatcher=MemoryDispatcher(),
        clock=clock,
        monotonic=monotonic,
    )


def _register_times(settings: Settings) -> dict[str, int]:
    return {
        "interval_ms": int(settings.heartbeat_interval_s * 1000),
        "ttl_ms": int(settings.heartbeat_ttl_s * 1000),
        "lease_ttl_ms": int(settings.lease_ttl_s * 1000),
    }


def _assemble(
    settings: Settings,
    *,
    store: Store,
    live: Live,
    bell: Bell,
    streams: Streams,
    register: Register,
    dispatcher: Dispatcher,
    handlers: HandlerRegistry | None = None,
    clock: Clock = system_clock,
    monotonic: Monotonic = time.monotonic,
) -> Services:
    handlers = handlers or load_handlers(settings.node_module_list)
    catalog = Catalog(store, clock, handlers)
    snapshots = SnapshotCache(register, monotonic)
    runs = Runs(
        store=store,
        live=live,
        dispatcher=dispatcher,
        choices=Choices(catalog, monotonic),
        snapshots=snapshots,
        instances=register.instances,
        waiting=Waiting(live, snapshots, catalog.needs),
        gate=Gate(live, dispatcher, monotonic=monotonic, depth_cap=settings.role_depth_cap),
        clock=clock,
        rng=random.Random(),  # noqa: S311 - draws a variant, guards nothing
        new_id=lambda: secrets.token_hex(16),
        default_role=settings.default_role or None,
        own_role=settings.service_role,
        input_max_bytes=settings.input_max_bytes,
    )
    return Services(settings, handlers, store, live, bell, streams, register, dispatcher, snapshots, catalog, runs)


def identity(*, role: str, node: str) -> Identity:
    """Return who this process is; each call makes another instance."""
    return Identity(
        instance_id=str(uuid.uuid4()),
        hostname=socket.gethostname(),
        role=role,
        version=version("rolecall"),
        pid=os.getpid(),
        node=node,
        started_ms=system_clock(),
    )


def pulse(
    services: Services,
    who: Identity,
    *,
    activity: Callable[[], Activity] = Activity,
    checks: Sequence[HealthCheck] = (),
    leases: Callable[[], list[tuple[str, str]]] = list,
    told: Callable[[bool], bool] = lambda _: False,
) -> Pulse:
    """Return the pulse of a process: its own checks, those of the shared servers, those of ``HEALTH_MODULES``.

    ``told``: see :class:`app.pulse.Pulse`; a process that takes no messages does nothing about it.
    """
    settings = services.settings
    own = load_checks(settings.health_module_list)
    return Pulse(
        who,
        register=services.register,
        live=services.live,
        health=Health(
            [*checks, *services.shared_checks(), *own],
            monotonic=time.monotonic,
            # A first hang may cost a beat this much; the next beat only looks at it.
            patience_s=settings.heartbeat_interval_s / 2,
        ),
        activity=activity,
        nodes=services.handlers.refs if who.role != DISPATCHER else frozenset(),
        leases=leases,
        told=told,
        lease_ttl_ms=int(settings.lease_ttl_s * 1000),
        monotonic=time.monotonic,
    )


def heart(celery: RolecallCelery, settings: Settings, pulse: Pulse) -> Beat:
    """Return the beat that sends a process's heartbeats."""
    return Beat(celery, LocalEntry("heartbeat", settings.heartbeat_interval_s, pulse.beat), name="heartbeat")


def keepers(
    services: Services, *, period_s: float, clock: Clock = system_clock, monotonic: Monotonic = time.monotonic
) -> Housekeeping:
    """Return what a dispatcher does for all runs, every ``period_s`` seconds."""
    settings, store, live, dispatcher = services.settings, services.store, services.live, services.dispatcher
    rules = RescueRules(
        max_losses=settings.run_max_attempts,
        queue_timeout_s=settings.queue_timeout_s,
        default_role=settings.default_role or None,
    )
    rescue = Rescue(
        live=live,
        register=services.register,
        dispatcher=dispatcher,
        catalog=services.catalog,
        rules=rules,
        monotonic=monotonic,
    )
    return Housekeeping(
        store=store,
        live=live,
        rescue=rescue,
        recovery=Recovery(store=store, live=live, dispatcher=dispatcher),
        clock=clock,
        period_s=period_s,
        # Nobody who lost an answer asks again later than this.
        keep_s=2 * settings.lease_ttl_s,
    )


def housekeeper(celery: RolecallCelery, services: Services) -> Beat:
    """Return the beat that keeps house, in a thread of its own so that no heartbeat waits for it."""
    # Twice a period, so that what ended is on record within one.
    period_s = services.settings.housekeeping_s / 2
    jobs = keepers(services, period_s=period_s)
    return Beat(celery, LocalEntry("housekeeping", period_s, jobs.round), name="housekeeping")


def next_role(services: Services) -> NextRole:
    """Return what chooses the role that goes on with a run that this process hands back."""
    return NextRole(
        live=services.live,
        register=services.register,
        catalog=services.catalog,
        default_role=services.settings.default_role or None,
    )


def executor(
    services: Services,
    worker: WorkerRef,
    *,
    leaving: Callable[[], Leaving | None],
    die: Callable[[], None] | None = None,
) -> Executor:
    """Return what executes runs in this process.

    ``leaving`` says why it is to take and keep none. ``die`` ends it, where nothing but one run would end with it.
    """
    settings = services.settings
    return Executor(
        store=services.store,
        live=services.live,
        dispatcher=services.dispatcher,
        catalog=services.catalog,
        handlers=services.handlers,
        worker=worker,
        flusher=Flusher(monotonic=time.monotonic, lease_ttl_s=settings.lease_ttl_s),
        limits=Limits(
            lease_ttl_s=settings.lease_ttl_s,
            run_timeout_s=settings.run_timeout_s,
            max_events=settings.run_max_events,
            output_max_bytes=settings.output_max_bytes,
        ),
        monotonic=time.monotonic,
        random=random.random,
        leaving=leaving,
        secrets=secrets_from(os.environ),
        streams=services.streams,
        elsewhere=next_role(services).now,
        die=die,
    )

"""What goes wrong during the soak: a schedule that follows from a seed, and whoever carries it out."""

from __future__ import annotations

import heapq
import logging
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Thread
from typing import Final

import redis

from app.client import Refused
from app.errors import RolecallError
from tests.soak.flows import ROLES
from tests.soak.world import TTL_S, World

logger = logging.getLogger(__name__)

FIRST_S: Final = 2.0
PAUSE_S: Final = (1.5, 5.5)
"""Between the beginnings of two faults."""

UNDRAIN_S: Final = 20.0

SERVER_S: Final = 5.0
"""How long a server may take that nothing is wrong with."""

WORKERS: Final = tuple(f"{role}{number}" for role in ROLES for number in (1, 2))
FORKING: Final = tuple(name for name in WORKERS if not name.startswith(ROLES[-1]))
DISPATCHERS: Final = ("dispatcher1", "dispatcher2")

KINDS: Final[dict[str, tuple[tuple[str, ...], tuple[float, float]]]] = {
    "kill worker": (WORKERS, (0.5, 6.0)),
    "kill child": (FORKING, (0.0, 0.0)),
    "freeze worker": (WORKERS, (1.2 * TTL_S, 2.5 * TTL_S)),
    "freeze parent": (FORKING, (1.2 * TTL_S, 2.0 * TTL_S)),
    "stop worker": (WORKERS, (4.0, 6.0)),
    "kill dispatcher": (DISPATCHERS, (0.5, 5.0)),
    "kill admin": (("admin",), (0.2, 2.0)),
    "freeze redis": (("redis",), (0.5, 7.0)),
    "restart redis": (("redis",), (0.1, 3.0)),
    "drop redis": (("redis",), (0.0, 0.0)),
    "empty redis": (("redis",), (0.0, 0.0)),
    "stall redis": (("redis",), (0.5, 5.0)),
    "freeze mongo": (("mongo",), (0.5, 7.0)),
    "restart mongo": (("mongo",), (0.1, 3.0)),
    "drop mongo": (("mongo",), (0.0, 0.0)),
    "stall mongo": (("mongo",), (0.5, 5.0)),
    "drain role": (ROLES, (2.0, 6.0)),
}
"""Kinds of faults: what they may befall, and how long they last, from and to."""

TWICE: Final = ("kill worker", "kill child", "freeze worker")
"""Kinds that come twice as often as the others: what the rescue of runs is there for."""

RECOVERS_S: Final = 3.0
"""After a fault's end its target is left alone for this long."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``at_s``: after the soak's begin."""

    at_s: float
    kind: str
    target: str
    lasts_s: float

    @property
    def claims(self) -> tuple[str, ...]:
        """What no other fault may befall at the same time: of two dispatchers one is left alone, of a role's workers
        nobody is killed while it is drained.
        """
        if self.target in DISPATCHERS:
            return ("dispatchers",)
        return WORKERS_OF.get(self.target, (self.target,))


WORKERS_OF: Final = {role: tuple(name for name in WORKERS if name.startswith(role)) for role in ROLES}


def plan(seed: int, seconds: float) -> list[Fault]:
    """Return the faults of a soak, in order. They come in rounds, each with every kind."""
    rng = random.Random(seed)
    free_at: dict[str, float] = {}
    bag = _endless_bag(rng, (*KINDS, *TWICE))
    faults: list[Fault] = []
    now_s = FIRST_S
    while now_s < seconds:
        kind = next(bag)
        targets, (least, most) = KINDS[kind]
        fault = Fault(round(now_s, 2), kind, rng.choice(targets), round(rng.uniform(least, most), 2))
        begins_s = max(now_s, *(free_at.get(claim, 0.0) for claim in fault.claims))
        if begins_s >= seconds:
            break
        fault = Fault(round(begins_s, 2), kind, fault.target, fault.lasts_s)
        faults.append(fault)
        for claim in fault.claims:
            free_at[claim] = begins_s + fault.lasts_s + RECOVERS_S
        now_s += rng.uniform(*PAUSE_S)
    return sorted(faults, key=lambda each: each.at_s)


def _endless_bag(rng: random.Random, kinds: tuple[str, ...]) -> Iterator[str]:
    while True:
        yield from rng.sample(kinds, len(kinds))


@dataclass
class Log:
    """What was done: when (this machine's time, in ms), and in words."""

    begun: list[tuple[int, Fault]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def counts(self) -> Counter[str]:
        return Counter(fault.kind for _, fault in self.begun)


class Saboteur:
    """Carries out a plan in a thread of its own."""

    def __init__(self, world: World, faults: list[Fault]) -> None:
        self.log = Log()
        self._world = world
        self._over = Event()
        self._drained: set[str] = set()
        self._actions: list[tuple[float, int, Callable[[], None]]] = []
        for number, fault in enumerate(faults):
            self._actions.append((fault.at_s, number, partial(self._begin, fault)))
        heapq.heapify(self._actions)
        self._number = len(faults)
        self._thread = Thread(target=self._run, name="saboteur", daemon=True)
        self._began = 0.0

    def start(self) -> None:
        self._began = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Begin nothing new. What is down, frozen or stalled stays so until the world is healed."""
        self._over.set()
        self._thread.join(30)

    def undrain(self) -> None:
        """Undrain whatever is still drained; to be called once the admin app is well."""
        give_up_at = time.monotonic() + UNDRAIN_S
        while self._drained and time.monotonic() < give_up_at:
            for role in list(self._drained):
                self._undrain(role)
            time.sleep(0.5)

    def _run(self) -> None:
        while self._actions:
            at_s, _, act = self._actions[0]
            if self._over.wait(max(0.0, self._began + at_s - time.monotonic())):
                return
            heapq.heappop(self._actions)
            try:
                act()
            except Exception as error:
                logger.exception("the saboteur failed")
                self._say(f"  the saboteur failed: {error!r}")

    def _begin(self, fault: Fault) -> None:
        begin, mend = self._how(fault)
        self.log.begun.append((int(time.time() * 1000), fault))
        what = begin()
        self._say(f"{fault.kind} {fault.target}{f' for {fault.lasts_s:g} s' if fault.lasts_s else ''}{what or ''}")
        if mend is not None:
            self._later(fault.lasts_s, lambda: self._mend(fault, mend))

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._actions, (time.monotonic() - self._began + seconds, self._number, act))

    def _mend(self, fault: Fault, mend: Callable[[], object]) -> None:
        mend()
        self._say(f"  {fault.kind} {fault.target} is over")

    def _say(self, text: str) -> None:
        line = f"{time.strftime('%H:%M:%S')} {text}"
        self.log.lines.append(line)
        logger.info("%s", line)

    def _how(self, fault: Fault) -> tuple[Callable[[], str | None], Callable[[], object] | None]:
        """Return how a fault begins and how it ends."""
        world, target = self._world, fault.target
        server = {"redis": "valkey", "mongo": "mongo"}.get(target, target)
        match fault.kind.split(" ")[0], fault.kind:
            case "kill", "kill child":
                return lambda: self._kill_child(target), None
            case (("kill" | "restart"), _):
                return lambda: world.kill(server), lambda: world.start(server)
            case "stop", _:
                return lambda: world.stop(server), lambda: world.start(server)
            case "freeze", kind:
                whole = kind != "freeze parent"
                return lambda: world.freeze(server, children=whole), lambda: world.thaw(server)
            case "drop", _:
                return lambda: f": {world.proxies[target].drop()} connections", None
            case "empty", _:
                return self._empty_redis, None
            case "stall", _:
                return world.proxies[target].stall, world.proxies[target].resume
            case "drain", _:
                return lambda: self._drain(target), lambda: self._undrain(target)
        raise ValueError(fault.kind)

    def _kill_child(self, target: str) -> str:
        children = self._world.members[target].children()
        if not children:
            return ": it has none"
        os.kill(children[0], signal.SIGKILL)
        return f": process {children[0]}"

    def _empty_redis(self) -> str:
        """Forget everything: live states, the register, and the broker's messages too."""
        with redis.Redis.from_url(self._world.settings.redis_url, socket_timeout=SERVER_S) as server:
            keys = server.dbsize()
            server.flushall()
        return f": {keys} keys"

    def _drain(self, role: str) -> str:
        self._drained.add(role)  # even if no answer comes: it may have been heard
        return self._ask(role, "drain", {"force": True})

    def _undrain(self, role: str) -> None:
        if self._ask(role, "undrain", None):
            # Most likely the admin app is down at this moment. Nobody else would ever undrain it.
            self._later(1.0, lambda: self._undrain(role))
        else:
            self._drained.discard(role)

    def _ask(self, role: str, what: str, body: dict[str, bool] | None) -> str:
        """Ask the admin app; return what it has against it."""
        try:
            with self._world.client() as client:
                client.post(f"/admin/roles/{role}/{what}", body)
        except Refused as error:
            # Asking again would not help. A role that could not be drained need not be undrained.
            self._drained.discard(role)
            self._say(f"  {what} {role} was refused with {error.status} {error.code}")
        except RolecallError as error:
            return f": {error.code}"
        return ""

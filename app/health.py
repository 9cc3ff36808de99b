"""Health checks: small questions that a process asks itself before each heartbeat.

A check is a callable without arguments that returns a detail to show, or raises; made known by :func:`health_check`,
in the product or in a module named in ``HEALTH_MODULES``::

    @health_check("gpu", timeout_s=2)
    def gpu() -> str:
        ...
        return "1 device"
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Event as Flag
from threading import Lock, Thread
from types import ModuleType
from typing import Literal

from app.clock import Monotonic
from app.errors import SettingError
from app.models.heartbeat import Check

logger = logging.getLogger(__name__)

Scope = Literal["local", "shared"]
Probe = Callable[[], str | None]

DEFAULT_TIMEOUT_S = 2.0
_MARK = "__rolecall_health_check__"


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A named question. ``local``: a failure makes this process unhealthy. ``shared``: a server that all processes
    share has a fault; it is shown, and does not make every worker of the world unhealthy at once."""

    name: str
    probe: Probe
    scope: Scope = "local"
    timeout_s: float = DEFAULT_TIMEOUT_S


def health_check(
    name: str, *, scope: Scope = "local", timeout_s: float = DEFAULT_TIMEOUT_S
) -> Callable[[Probe], Probe]:
    """Mark a function as a health check; it stays a plain function."""

    def mark(probe: Probe) -> Probe:
        setattr(probe, _MARK, HealthCheck(name, probe, scope, timeout_s))
        return probe

    return mark


def find_checks(module: ModuleType) -> list[HealthCheck]:
    """Return the checks that a module has marked, in the order of their definition."""
    return [check for value in vars(module).values() if isinstance(check := getattr(value, _MARK, None), HealthCheck)]


def load_checks(module_names: Iterable[str]) -> list[HealthCheck]:
    """Import modules and return their checks.

    Raises:
        SettingError: a module cannot be imported or marks no check.
    """
    checks = []
    for name in module_names:
        try:
            found = find_checks(importlib.import_module(name))
        except Exception as error:
            raise SettingError(f"HEALTH_MODULES={name!r}: it cannot be imported: {error}") from error
        if not found:
            raise SettingError(f"HEALTH_MODULES={name!r}: it has no function marked with @health_check")
        checks.extend(found)
    return checks


class _Running:
    """One probe under way in a thread of its own."""

    def __init__(self, check: HealthCheck, monotonic: Monotonic) -> None:
        self._check = check
        self._monotonic = monotonic
        self.started_at = monotonic()
        self.done = Flag()
        self.result = Check(healthy=False, detail="not answered", scope=check.scope)
        Thread(target=self._ask, name=f"health-{check.name}", daemon=True).start()

    def _ask(self) -> None:
        try:
            detail, healthy = self._check.probe() or "", True
        except Exception as error:
            detail, healthy = str(error) or type(error).__name__, False
        took_ms = round((self._monotonic() - self.started_at) * 1000, 1)
        self.result = Check(healthy=healthy, detail=detail[:500], ms=took_ms, scope=self._check.scope)
        self.done.set()


class Health:
    """The checks of one process. A hung check is unhealthy, holds up nothing and is not started a second time."""

    def __init__(self, checks: Iterable[HealthCheck], *, monotonic: Monotonic, patience_s: float) -> None:
        self._checks = {check.name: check for check in checks}
        self._monotonic = monotonic
        self._patience_s = patience_s
        self._running: dict[str, _Running] = {}
        self._lock = Lock()

    def add(self, check: HealthCheck) -> None:
        """Ask one more question from now on; one of the same name is replaced."""
        with self._lock:
            self._checks[check.name] = check

    def examine(self) -> dict[str, Check]:
        """Ask every check at once and return the answers, after at most ``patience_s`` seconds."""
        with self._lock:
            hung = set(self._running)
            for name, check in self._checks.items():
                if name not in self._running:
                    self._running[name] = _Running(check, self._monotonic)
            asked = {name: self._running[name] for name in self._checks}
            give_up_at = self._monotonic() + self._patience_s
            answers = {}
            for name, running in asked.items():
                # One that hung before is only looked at; waiting again would hold up every heartbeat.
                limit = min(self._checks[name].timeout_s, give_up_at - self._monotonic())
                running.done.wait(0 if name in hung else max(0.0, limit))
                answers[name] = self._answer(name, running)
            return answers

    def _answer(self, name: str, running: _Running) -> Check:
        if running.done.is_set():
            del self._running[name]
            return running.result
        waited_s = self._monotonic() - running.started_at
        check = self._checks[name]
        detail = f"has not answered for {waited_s:.1f} s"
        return Check(healthy=False, detail=detail, ms=round(waited_s * 1000, 1), scope=check.scope)


def is_healthy(checks: dict[str, Check]) -> bool:
    """Return whether a process with these answers is healthy: what is its own must be; what is shared is shown."""
    return all(check.healthy for check in checks.values() if check.scope == "local")

"""Whether Rolecall can take and run work now: each thing that it stands on is asked, within a bounded time."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from time import monotonic

from admin import fleet
from app.errors import Unavailable
from app.health import Health, HealthCheck
from app.models.heartbeat import Check
from app.models.names import DISPATCHER
from app.roles import is_role_healthy
from app.wiring import Services

PATIENCE_S = 3.0
MAX_AGE_S = 1.0


@dataclass(frozen=True, slots=True)
class Report:
    """The answer of every check."""

    checks: dict[str, Check]

    @property
    def ready(self) -> bool:
        return all(check.healthy for check in self.checks.values())


class Readiness:
    """Asks the checks, all at once and at most once a second however many ask for a report."""

    def __init__(self, services: Services) -> None:
        def register() -> str:
            return f"{len(fleet.known_snapshot(services).roles)} roles"

        def dispatcher() -> str:
            if not is_role_healthy(fleet.known_snapshot(services).roles, DISPATCHER):
                raise Unavailable("no healthy dispatcher; start one: SERVICE_ROLE=dispatcher celery -A app worker")
            return "alive"

        own = [HealthCheck("register", register, "shared"), HealthCheck("dispatcher", dispatcher, "shared")]
        self._health = Health([*own, *services.shared_checks()], monotonic=monotonic, patience_s=PATIENCE_S)
        self._lock = Lock()
        self._asked_at = float("-inf")
        self._report = Report({})

    def report(self) -> Report:
        """Return a report at most a second old, after at most ``PATIENCE_S`` seconds."""
        with self._lock:
            if monotonic() - self._asked_at > MAX_AGE_S:
                self._report = Report(self._health.examine())
                self._asked_at = monotonic()
            return self._report

"""What one admin process holds: its services and the sign that it is about to stop."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from threading import Event

from flask import current_app

from admin.readiness import Readiness
from admin.shared_log import SharedLog
from app.wiring import Services

KEY = "rolecall"
"""Where Flask's ``app.extensions`` holds the process."""


class Process:
    """Builds its parts when they are first asked for, so that no client and no lock of theirs crosses a fork."""

    def __init__(self, factory: Callable[[], Services]) -> None:
        self._factory = factory

    @cached_property
    def services(self) -> Services:
        return self._factory()

    @cached_property
    def readiness(self) -> Readiness:
        return Readiness(self.services)

    @cached_property
    def log(self) -> SharedLog:
        """The logs of runs, for those who follow them."""
        runs = self.services.runs
        return SharedLog(lambda run_id, after, limit: runs.log(run_id, after=after, limit=limit))

    @cached_property
    def stopping(self) -> Event:
        """Set once the process is to end; open streams then finish."""
        return Event()

    def warm_up(self) -> None:
        """Build everything now, while nobody else asks."""
        self.services, self.readiness, self.log, self.stopping  # noqa: B018 - for the sake of building them

    def stop(self) -> None:
        """Let open streams end now."""
        self.stopping.set()
        # Rings every bell: whoever waits for an event sees that the process stops.
        self.services.bell.close()

    def close(self) -> None:
        """Give the services' connections back."""
        self.stop()
        self.services.close()


def process() -> Process:
    """Return the process of the app that handles the current request."""
    held: Process = current_app.extensions[KEY]
    return held


def services() -> Services:
    """Return the services of the app that handles the current request."""
    return process().services

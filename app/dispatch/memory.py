"""A dispatcher that keeps nudges in a list, for tests and for programs that execute by themselves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from threading import Lock

from app.errors import ServerUnavailable
from app.ports import Nudge


class MemoryDispatcher:
    """Keeps what was sent, by role, in order. ``down``: refuse everything, as a broker that is away."""

    def __init__(self) -> None:
        self.sent: list[Nudge] = []
        self.down = False
        self._lock = Lock()

    def ping(self) -> None:
        if self.down:
            raise ServerUnavailable("broker", "it is switched off")

    def nudge(self, nudge: Nudge) -> None:
        self.ping()
        with self._lock:
            self.sent.append(nudge)

    def depth(self, roles: Collection[str]) -> Mapping[str, int]:
        self.ping()
        with self._lock:
            return {role: sum(1 for nudge in self.sent if nudge.target_role == role) for role in roles}

    def close(self) -> None:
        """Nothing is held."""

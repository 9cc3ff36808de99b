"""The admin process's place in the register: it announces itself like every other process."""

from __future__ import annotations

import socket

from app import wiring
from app.beat import Beat
from app.celery import RolecallCelery
from app.pulse import Pulse
from app.wiring import Services


class Heart:
    """Sends the heartbeats of one admin process from a thread of its own, and its goodbye."""

    def __init__(self, services: Services) -> None:
        settings = services.settings
        node = f"{settings.service_role}@{socket.gethostname()}"
        who = wiring.identity(role=settings.service_role, node=node)
        self._pulse: Pulse = wiring.pulse(services, who)
        self._beat: Beat = wiring.heart(RolecallCelery(settings), settings, self._pulse)

    def start(self) -> None:
        self._beat.start()

    def stop(self) -> None:
        """Stop beating, then leave the register."""
        self._beat.stop()
        self._pulse.leave()

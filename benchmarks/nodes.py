"""Handlers for the flows that are measured; workers load them by ``NODE_MODULES``."""

from __future__ import annotations

import time

from app.nodes import HandlerSettings, Step, handler
from benchmarks.peer import STAMPS, client


class StampSettings(HandlerSettings):
    url: str


@handler("bench/pass")
def pass_on(step: Step) -> None:
    """Do nothing, as a node whose own work costs nothing."""


@handler("bench/stamp", settings=StampSettings)
def stamp(step: Step) -> None:
    """Report when the body began, with the very code of the peer's task."""
    at = time.time_ns()
    client(step.settings.url).rpush(STAMPS, at)

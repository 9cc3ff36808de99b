"""Handlers that do to their process what no handler should; workers load them by ``NODE_MODULES``."""

from __future__ import annotations

import os
import signal
import time

from app.nodes import Step, handler


@handler("wild/stubborn")
def stubborn(_: Step) -> None:
    """Work on for a minute, whatever is asked."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        time.sleep(0.1)


@handler("wild/suicide")
def suicide(_: Step) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@handler("wild/greedy")
def greedy(_: Step) -> None:
    raise MemoryError("it wanted all of it")

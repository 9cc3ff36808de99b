"""A process's pulse on Celery's beat: its service in a thread, with a schedule in memory of local entries.

Celery's own scheduler sends messages and keeps a file; this one calls a function of this very process. So a heartbeat
says that *this* process lives (a task on a queue would be done by anybody, and starve behind a long run), and nothing
on disk can stop it. See docs/adr/0004-heartbeat-on-embedded-beat.md.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery import Celery
from celery.beat import EmbeddedService, Scheduler

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalEntry:
    """Something this process does every ``interval_s`` seconds, first at once."""

    name: str
    interval_s: float
    action: Callable[[], object]


class LocalScheduler(Scheduler):  # type: ignore[misc]
    """Calls local entries when they are due, by a clock that nobody can set.

    A slow or failing entry is late for its next time; times that were missed are not made up for.
    """

    def __init__(self, *args: Any, entries: tuple[LocalEntry, ...] = (), **kwargs: Any) -> None:
        self._entries = entries
        self._due = dict.fromkeys((entry.name for entry in entries), time.monotonic())
        super().__init__(*args, **kwargs)

    def call_soon(self) -> None:
        """Make every entry due now."""
        self._due = dict.fromkeys(self._due, 0.0)

    def setup_schedule(self) -> None:
        """Nothing to install: the entries were given, and no other schedule is read."""

    def tick(self, *_: Any, **__: Any) -> float:
        """Call what is due; return the seconds until the next entry is, at most half a second."""
        for entry in self._entries:
            now = time.monotonic()
            if now >= self._due[entry.name]:
                # From the start of this call, so that the interval does not grow by the time it takes; before it, so
                # that whoever asks for another call meanwhile gets one.
                self._due[entry.name] = now + entry.interval_s
                self._call(entry)
        wait = min(self._due.values(), default=time.monotonic() + 1) - time.monotonic()
        # Short, so that the service can be stopped quickly.
        return max(0.001, min(wait, 0.5))

    def _call(self, entry: LocalEntry) -> None:
        try:
            entry.action()
        except Exception:
            logger.exception("%s failed; it is tried again in %g s", entry.name, entry.interval_s)

    def should_sync(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing is kept."""


class Beat:
    """Celery's beat service in a thread of this process, doing ``entries``.

    A process whose beat has died looks dead to all others while it goes on working, so it is ended with SIGTERM.
    """

    def __init__(self, celery: Celery, *entries: LocalEntry, name: str = "beat") -> None:
        self._name = name
        self._stopping = False
        self._thread = EmbeddedService(celery, thread=True, scheduler_cls=partial(LocalScheduler, entries=entries))
        self._thread.name = name
        run = self._thread.run
        self._thread.run = lambda: self._watch(run)

    def start(self) -> None:
        self._thread.start()

    def call_soon(self) -> None:
        """Do every entry within half a second instead of when it is due: something worth saying has happened."""
        self._thread.service.scheduler.call_soon()

    def stop(self) -> None:
        """Stop; returns when the entry under way, if there is one, is done (at most 5 s)."""
        if not self._stopping and self._thread.is_alive():
            self._stopping = True
            self._thread.service.stop()
            self._thread.join(5)

    def _watch(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException:
            logger.critical("%s has died", self._name, exc_info=True)
        if not self._stopping:
            logger.critical("%s has stopped by itself; this process ends, for nobody hears of it any more", self._name)
            os.kill(os.getpid(), signal.SIGTERM)

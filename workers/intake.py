"""Whether a worker takes messages: the heartbeat's thread hears what is to be, the worker's loop does it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock
from typing import Any

from workers.process import SharedFlag

logger = logging.getLogger(__name__)


class Intake:
    """Opens and closes the queue of a worker. ``draining`` is what the worker says of itself, and tells its children.

    Nothing is taken before the register has answered once: a drained worker that starts while Redis is away stays
    drained. ``draining`` is raised before the queue is closed and lowered after it is open again, so that the worker
    is healthy in between. A message that a pending BRPOP brings after the queue is closed is put back by kombu.
    """

    def __init__(self, role: str, draining: SharedFlag) -> None:
        self._role = role
        self._draining = draining
        self._closed = True
        self._lock = Lock()
        self._hurry: Callable[[], object] = lambda: None

    def told(self, drain: bool) -> bool:
        """Hear what the register says; return whether this worker begins to drain with that."""
        with self._lock:
            changed = self._closed is not drain
            self._closed = drain
            begins = drain and not self._draining.is_set()
            if begins:
                self._draining.set()
                logger.warning("this worker drains: it takes no more runs and hands back those it executes")
        if changed:
            # Until the loop has closed the queue, it takes messages that nobody may execute.
            self._hurry()
        return begins

    def begin(self, queues: Any) -> None:
        """Keep the queue closed from the start, if need be; called before the consumer is there."""
        with self._lock:
            if self._closed:
                self._draining.set()
                queues.deselect(self._role)

    def ready(self, hurry: Callable[[], object]) -> None:
        """The worker's loop runs; ``hurry`` makes it call :meth:`apply` at once, from whatever thread."""
        self._hurry = hurry

    def apply(self, consumer: Any) -> bool:
        """Close or open the queue, if need be; called in the worker's loop. Return whether it was opened."""
        with self._lock:
            if consumer.task_consumer is None:
                return False  # the connection is lost: it is called again
            consuming = consumer.task_consumer.consuming_from(self._role)
            if self._closed:
                if consuming:
                    consumer.cancel_task_queue(self._role)
                return False
            if not self._draining.is_set():
                return False
            if not consuming:
                consumer.add_task_queue(self._role)
            self._draining.clear()
            logger.warning("this worker drains no more: it takes runs again")
            return True

"""The worker's bootstep: its pulse starts with the pool, beats on while it drains, and says goodbye."""

from __future__ import annotations

import logging
import os
import signal
import time
from typing import Any

from celery import bootsteps, signals

from app import wiring
from app.beat import Beat
from app.models.names import DISPATCHER
from app.pulse import Pulse
from workers.intake import Intake
from workers.observer import Observer
from workers.stopping import Stopping
from workers.waking import wake_when_done

logger = logging.getLogger(__name__)


class PulseStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Starts after the pool has forked and before the consumer takes messages."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._beats: list[Beat] = []
        self._pulse: Pulse | None = None
        self._intake: Intake
        self._stopping: Stopping

    def start(self, parent: Any) -> None:
        process = parent.app.process
        observer = Observer(parent, process)
        parent.observer = observer
        self._intake = Intake(process.settings.service_role, process.draining)
        self._pulse = process.make_pulse(observer.activity, observer.checks(), observer.leases, self._intake.told)
        self._beats = [wiring.heart(parent.app, process.settings, self._pulse)]
        if process.settings.service_role == DISPATCHER:
            self._beats.append(wiring.housekeeper(parent.app, process.services))
        self._stopping = Stopping(
            deadline_s=process.settings.stop_deadline_s,
            announce=lambda: _announce(parent, self._pulse),
            give_back=lambda: process.give_back(observer.leases()),
            end=lambda: _end(observer, self._pulse),
            monotonic=time.monotonic,
        )
        parent.stopping = self._stopping
        if type(parent.pool).__module__.endswith(".thread"):
            wake_when_done(parent.pool, parent.hub)
        # Signals hold their receivers weakly; the bound methods live as long as this step.
        signals.task_received.connect(self._received, weak=False)
        signals.worker_ready.connect(self._ready, weak=False)
        # Of the operating system's signal itself, for the loop of a solo worker may be busy with a run.
        signals.worker_shutting_down.connect(lambda **_: self._stop(process), weak=False)
        signals.worker_shutdown.connect(self._shutdown, weak=False)
        _log_queue(parent)
        # The answer says whether this worker is drained, and the consumer is not there yet.
        self._pulse.beat()
        self._intake.begin(parent.app.amqp.queues)
        self._stopping.start()
        for beat in self._beats:
            beat.start()

    def stop(self, parent: Any) -> None:
        """The warm stop begins: say that this worker drains, tell the executing children, and beat on."""
        self._stop(parent.app.process)

    def terminate(self, parent: Any) -> None:
        """The cold stop: no more is said after this."""
        parent.app.process.stopping.set()
        self._goodbye(parent)

    def _stop(self, process: Any) -> None:
        process.stopping.set()
        self._stopping.warm()

    def _received(self, sender: Any = None, **_: Any) -> None:
        sender.controller.observer.received()

    def _ready(self, sender: Any = None, **_: Any) -> None:
        sender.timer.call_repeatedly(1, self._looped, (sender,))
        self._intake.ready(lambda: sender.call_soon(self._apply, sender))
        # The first beat came before the consumer did and had to call this worker unhealthy.
        self._beats[0].call_soon()

    def _looped(self, consumer: Any) -> None:
        # The loop says once a second that it comes round; a frozen loop stops saying so.
        consumer.controller.observer.looped()
        self._apply(consumer)

    def _apply(self, consumer: Any) -> None:
        if self._intake.apply(consumer):
            self._beats[0].call_soon()

    def _shutdown(self, sender: Any = None, **_: Any) -> None:
        self._goodbye(sender)

    def _goodbye(self, parent: Any) -> None:
        if self._pulse is None:
            return
        self._stopping.ended()
        for beat in self._beats:
            beat.stop()
        self._pulse.leave()
        self._pulse = None
        parent.app.process.services.close()
        parent.node_name.release()


def _announce(parent: Any, pulse: Pulse | None) -> None:
    """Say that this worker drains, and let its loop see at once that it has been told to stop."""
    if parent.hub is not None:
        parent.hub.call_soon(_look_up)
    if pulse is not None:
        pulse.beat()


def _look_up() -> None:
    """The loop looks at whether to stop whenever it comes round."""


def _end(observer: Observer, pulse: Pulse | None) -> None:
    """Say goodbye and end this process with its children: a thread cannot be ended alone."""
    if pulse is not None:
        pulse.leave()
    for pid in observer.children():
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _log_queue(parent: Any) -> None:
    options = parent.app.conf.broker_transport_options
    settings = parent.app.settings
    logger.info(
        "role %r, node %r, queue %r, broker acknowledgements %s, visibility timeout %s (runs do not depend on it)",
        settings.service_role,
        parent.hostname,
        settings.service_role,
        "emulated" if options.get("ack_emulation") else "of the broker",
        options.get("visibility_timeout", "default"),
    )

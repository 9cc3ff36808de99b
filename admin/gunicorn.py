"""gunicorn's configuration for the admin app: ``gunicorn -c admin/gunicorn.py admin.wsgi:app``."""

from __future__ import annotations

# ruff: noqa: E402 - whatever is imported before this line would keep locks and sockets that block the whole process.
from gevent import monkey

monkey.patch_all()

import logging
from typing import TYPE_CHECKING

import gevent

from admin.settings import admin_settings

if TYPE_CHECKING:
    from gunicorn.arbiter import Arbiter  # type: ignore[import-untyped]
    from gunicorn.workers.base import Worker  # type: ignore[import-untyped]

    from admin.heart import Heart
    from admin.process import Process

_settings = admin_settings()
_host = f"[{_settings.admin_host}]" if ":" in _settings.admin_host else _settings.admin_host

bind = f"{_host}:{_settings.admin_port}"
proc_name = "rolecall-admin"
worker_class = "gevent"
worker_connections = 2000
# An idle connection holds up the end of the process for this long.
keepalive = 2
# Streams end by themselves when the process stops; this is for whoever does not read them.
graceful_timeout = 3
control_socket_disable = True

LOG_FORMAT = "%(asctime)s [%(process)d] [%(levelname)s] %(name)s: %(message)s"
"""That of gunicorn's own lines, with who says it."""


def on_starting(server: Arbiter) -> None:
    """Refuse worker classes that cannot hold streams."""
    chosen = server.cfg.worker_class_str
    if chosen != worker_class:
        raise SystemExit(
            f"rolecall: gunicorn's worker class {chosen!r} cannot serve the admin app: every open event stream would "
            f"hold a whole worker or thread, and soon nothing else would be answered. Leave it at {worker_class!r}."
        )


def post_worker_init(worker: Worker) -> None:
    """Build the services, announce the process, and see to its end."""
    from admin.heart import Heart
    from admin.process import KEY

    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, datefmt="[%Y-%m-%d %H:%M:%S %z]")
    held: Process = worker.wsgi.extensions[KEY]
    held.warm_up()
    heart = Heart(held.services)
    heart.start()
    gevent.spawn(_see_off, worker, held, heart)


def _see_off(worker: Worker, held: Process, heart: Heart) -> None:
    """End streams and say goodbye as soon as the worker is told to stop.

    gunicorn has no hook for that: it clears a flag, waits for open connections, and may kill the worker while it waits.
    """
    while worker.alive:
        gevent.sleep(0.1)
    held.stop()
    heart.stop()


def worker_exit(server: Arbiter, worker: Worker) -> None:  # noqa: ARG001 - gunicorn's signature
    """Give the connections back."""
    from admin.process import KEY

    if app := getattr(worker, "wsgi", None):
        app.extensions[KEY].close()

"""Celery's worker with a role: its queue and its name follow from ``SERVICE_ROLE``."""

from __future__ import annotations

import socket
from typing import Any

from celery.apps.worker import Worker

from app.errors import SettingError
from workers import node_name
from workers.process import WorkerProcess
from workers.steps import PulseStep


class RoleWorker(Worker):
    """``celery -A app worker``: consumes its role's queue and no other."""

    def __init__(self, app: Any = None, hostname: str | None = None, **options: Any) -> None:
        app = app or self.app
        settings = app.settings
        role = settings.service_role
        _check_queues(role, options.get("queues"), options.get("exclude_queues"))
        options["queues"] = [role]
        host = socket.gethostname()
        # Celery's own default says nothing of the role; a name that the operator gave stays.
        if hostname is None or hostname == f"celery@{host}":
            self.node_name = node_name.claim(role, host, installation=f"{settings.broker_url} {settings.key_prefix}")
        else:
            self.node_name = node_name.NodeName(hostname, None)
        try:
            app.process = WorkerProcess(app, settings, node=self.node_name.name)
        except SettingError as error:
            raise SystemExit(f"rolecall: {error}") from None
        app.steps["worker"].add(PulseStep)
        super().__init__(app=app, hostname=self.node_name.name, **options)

    def wait_for_soft_shutdown(self) -> None:
        """Celery's first step of a cold stop, before it ends what executes: all of that is handed back."""
        self.app.process.stopping.set()
        self.stopping.cold()
        super().wait_for_soft_shutdown()


def _check_queues(role: str, wanted: Any, excluded: Any) -> None:
    """End the process if it was told to consume anything but its role's queue."""
    names = [wanted] if isinstance(wanted, str) else list(wanted or ())
    if any(name != role for name in names) or excluded:
        given = f"-Q {','.join(names)}" if names else "-X"
        raise SystemExit(
            f"rolecall: {given} is refused: a worker consumes the queue of its role and no other, and SERVICE_ROLE is "
            f"{role!r}. Leave the option out, or start another worker: SERVICE_ROLE=<role> celery -A app worker"
        )

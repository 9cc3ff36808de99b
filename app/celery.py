"""The Celery app: ``celery -A app worker`` is all that an operator types.

The configuration is made from the settings when Celery first asks for it, not when this module is imported.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from celery import Celery
from celery.worker.control import inspect_command
from kombu import Exchange, Queue

from app.config import Settings, load_settings
from app.errors import SettingError
from app.models.names import DISPATCHER

RUN_TASK = "flow.run"
DISPATCH_TASK = "flow.dispatch"

RESULT_TTL_S = 3600

# Publishing to the default exchange needs no binding, so none can be lost, and saves its look-up.
_DEFAULT_EXCHANGE = Exchange("", type="direct")


def role_queue(role: str, *, quorum: bool = False) -> Queue:
    """Return the queue of a role; its name is the role's name. ``quorum`` is how RabbitMQ keeps it."""
    arguments = {"x-queue-type": "quorum"} if quorum else None
    return Queue(role, exchange=_DEFAULT_EXCHANGE, routing_key=role, queue_arguments=arguments)


class RolecallCelery(Celery):  # type: ignore[misc]
    """Celery whose worker takes its name and its queue from ``SERVICE_ROLE``."""

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__("rolecall", include=["workers.tasks"], set_as_current=settings is None)
        self._settings = settings
        self.add_defaults(lambda: configuration(self.settings))

    @cached_property
    def settings(self) -> Settings:
        """The settings of this process, read once.

        A wrong one ends the process with the reason: this is read when an operator starts something.
        """
        try:
            return self._settings or load_settings()
        except SettingError as error:
            raise SystemExit(f"rolecall: {error}") from None

    @cached_property
    def Worker(self) -> Any:
        # By name, so that the shared kernel imports nothing of `workers`.
        return self.subclass_with_self("workers.controller:RoleWorker")


@inspect_command()  # type: ignore[untyped-decorator]
def role(state: Any) -> dict[str, Any]:
    """The worker's heartbeat: its role, health checks, slots and handlers."""
    heartbeat: dict[str, Any] = state.app.process.heartbeat().to_wire()
    return heartbeat


def configuration(settings: Settings) -> dict[str, Any]:
    """Return Celery's configuration for a process with these settings."""
    role, over_redis = settings.service_role, _is_redis(settings.broker_url)
    return {
        "broker_url": settings.broker_url,
        "broker_transport_options": _transport_options(settings) if over_redis else {},
        "broker_connection_timeout": settings.socket_timeout_s,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_heartbeat": 10,
        "broker_pool_limit": 16,
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        "enable_utc": True,
        "timezone": "UTC",
        # No default queue and none made by a typo: every message names the role that is to have it.
        "task_queues": (role_queue(role, quorum=not over_redis),),
        "task_default_queue": role,
        "task_default_exchange": "",
        "task_default_routing_key": role,
        "task_create_missing_queues": False,
        "task_default_queue_type": "classic" if over_redis else "quorum",
        # Only flow.dispatch has a result; it asks for one itself.
        "task_ignore_result": True,
        "result_backend": settings.broker_url if over_redis else settings.redis_url,
        "result_expires": RESULT_TTL_S,
        "redis_socket_timeout": settings.socket_timeout_s,
        "redis_socket_connect_timeout": settings.socket_timeout_s,
        "redis_socket_keepalive": True,
        "redis_backend_health_check_interval": 10,
        "redis_retry_on_timeout": False,
        # One message a free slot: a worker must not hold what an idle worker could run.
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": over_redis,
        "task_acks_late": role == DISPATCHER,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_hijack_root_logger": True,
        "worker_proc_alive_timeout": 30,
        "worker_soft_shutdown_timeout": 0,
        "worker_enable_soft_shutdown_on_idle": False,
        "worker_redirect_stdouts_level": "INFO",
        # Runs are watched by their own events; Celery's cost 40 % of the throughput and are on with `-E`.
        "worker_send_task_events": False,
    }


def _transport_options(settings: Settings) -> dict[str, Any]:
    return {
        "socket_timeout": settings.socket_timeout_s,
        "socket_connect_timeout": settings.socket_timeout_s,
        "socket_keepalive": True,
        "health_check_interval": 10,
        "retry_on_timeout": False,
        # Whether a nudge is lost is housekeeping's business, not the broker's: kombu's emulated acknowledgements cost
        # two thirds of the throughput and restore messages of runs that are alive (docs/adr/0010-acknowledgement.md).
        # A message to a dispatcher is another matter: before it is handled there is no record of it.
        "ack_emulation": settings.service_role == DISPATCHER,
    }


def _is_redis(url: str) -> bool:
    return not url.startswith("amqp")


app = RolecallCelery()

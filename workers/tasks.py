"""The two tasks. Their names, queues and arguments are a contract with other apps (docs/events.md)."""

from __future__ import annotations

import logging
from typing import Any

from celery import shared_task

from app.celery import DISPATCH_TASK, RUN_TASK
from app.errors import BadRequest, RolecallError
from workers.request import TOKEN_HEADER

logger = logging.getLogger(__name__)


class DispatchRefused(Exception):
    """``flow.dispatch`` was refused; the text begins with the stable code."""


@shared_task(
    name=RUN_TASK,
    bind=True,
    Request="workers.request:LeasedRequest",
    acks_late=False,
    max_retries=0,
    ignore_result=True,
)
def run(self: Any, run_id: Any = None, attempt: Any = None, **_: Any) -> str:
    """Execute a run that is queued for this worker's role. The message is a nudge: doubled or late ones do nothing.

    Nothing that goes wrong here is raised: Celery would stop the worker for some of it.
    """
    token = self.request.get(TOKEN_HEADER)
    if not isinstance(run_id, str) or not isinstance(token, str):
        logger.error("a %s message without a run_id was dropped", RUN_TASK)
        return "malformed"
    try:
        word: str = self.app.process.executor.execute(run_id, token)
    except BaseException as error:
        # MemoryError, SystemExit and the like included.
        logger.exception("run %s attempt %s could not be executed: %s", run_id, attempt, type(error).__name__)
        self.app.process.child_lost(run_id, token)
        return "crashed"
    logger.info("run %s attempt %s: %s", run_id, attempt, word)
    return word


@shared_task(name=DISPATCH_TASK, bind=True, acks_late=True, max_retries=0, ignore_result=False)
def dispatch(self: Any, deployment_id: Any = None, **body: Any) -> dict[str, Any]:
    """Start a run for another app; the result is the body of the API's 202.

    kwargs: ``deployment_id``, and ``input``, ``meta``, ``idempotency_key`` (default: this task's id), ``expires_at``,
    ``priority``. Refused requests fail with the API's code and text.
    """
    names = {"idempotency_key": "idempotencyKey", "expires_at": "expiresAt"}
    request = {names.get(name, name): value for name, value in body.items() if value is not None}
    try:
        if not isinstance(deployment_id, str):
            raise BadRequest("deployment_id: is required and must be a string")
        started = self.app.process.services.runs.start(deployment_id, request, default_key=self.request.id)
    except RolecallError as error:
        raise DispatchRefused(f"{error.code}: {error}") from None
    return started.to_wire() | {"events": f"/api/v1/runs/{started.run_id}/events"}

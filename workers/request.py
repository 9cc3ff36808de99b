"""The worker's own record of a ``flow.run`` message: it mints the lease token that the executing child will use."""

from __future__ import annotations

import secrets
from typing import Any

from celery.worker.request import Request

TOKEN_HEADER = "lease_token"  # noqa: S105 - the header's name


class LeasedRequest(Request):  # type: ignore[misc]
    """A request whose lease is known to the main process, which renews it as long as the run is being executed.

    The token is minted here and travels to the pool with the message's headers; a token in the message itself is
    overwritten.
    """

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        self._token = secrets.token_hex(16)
        self._request_dict[TOKEN_HEADER] = self._token

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """The task itself never raises: whatever comes here, the process that executed it is gone."""
        if self.lease is not None:
            self.app.process.child_lost(*self.lease)
        return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)

    @property
    def lease(self) -> tuple[str, str] | None:
        """The run's id and the token, or ``None`` for a message that names no run."""
        kwargs = self.kwargs
        run_id = kwargs.get("run_id") if isinstance(kwargs, dict) else None
        return (run_id, self._token) if isinstance(run_id, str) else None

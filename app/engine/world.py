"""What the steps of one attempt ask of the world (:class:`app.nodes.step.World`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final

import orjson

from app.engine.calling import Failed, call, checked
from app.engine.host import HandBack, Host
from app.models.event import NewEvent
from app.nodes.api import Code, HandlerError
from app.nodes.registry import HandlerRegistry
from app.nodes.step import Call, Step

Secrets = Callable[[str], str | None]
REDACTED: Final = "[secret]"
SHORTEST_SECRET: Final = 4
"""A shorter one occurs everywhere by chance."""


class RunWorld:
    """Passes most on to the host; lets one thread speak at a time; calls handlers for handlers."""

    def __init__(self, host: Host, meta: Mapping[str, Any], handlers: HandlerRegistry, secrets: Secrets | None) -> None:
        self._host = host
        self._meta = meta
        self._handlers = handlers
        self._secrets = secrets
        self._speaking = Lock()
        self._steady = False
        self._told: set[str] = set()
        self.cancelled, self.now = host.cancelled, host.now
        self.sleep, self.count = host.sleep, host.count

    def emit(self, event: NewEvent) -> None:
        if self._told and event.data is not None:
            event = NewEvent(event.type, event.node, orjson.loads(self.redacted(orjson.dumps(event.data))))
        with self._speaking:
            self._host.emit(event)

    def check(self) -> None:
        try:
            self._host.check()
        except HandBack:
            if not self._steady:
                raise

    @contextmanager
    def steady(self, on: bool) -> Iterator[None]:
        """Within, the run is not handed back from inside a handler: nobody could say how far that had come."""
        before = self._steady
        self._steady = on or before
        try:
            yield
        finally:
            self._steady = before

    # --- secrets -------------------------------------------------------------------------------------------------

    def secret(self, name: str) -> str | None:
        value = None if self._secrets is None else self._secrets(name)
        if value and len(value) >= SHORTEST_SECRET:
            self._told.add(value)
        return value

    def redact(self, text: str) -> str:
        for secret in self._told:
            text = text.replace(secret, REDACTED)
        return text

    def redacted(self, text: bytes) -> bytes:
        """Return JSON text without the secrets that handlers of this attempt were told."""
        for secret in self._told:
            text = text.replace(orjson.dumps(secret)[1:-1], REDACTED.encode())
        return text

    # --- handlers for handlers -----------------------------------------------------------------------------------

    def handler(self, step: Step, ref: str, settings: Mapping[str, Any]) -> Call:
        found = self._handlers.find((ref,))
        if found is None:
            raise HandlerError(f"this worker has no handler {ref!r}")
        parsed, faults = found.read_settings(settings)
        if faults:
            raise HandlerError(f"settings of {ref}: {'; '.join(map(str, faults))}", code=Code.VALIDATION)

        def call_handler(value: Any, part: str) -> Any:
            step.check()
            inner = Step(
                input=value,
                settings=parsed,
                meta=self._meta,
                node=step.node,
                key=f"{step.key}/{part}",
                world=self,
                deadline=step.deadline,
            )
            try:
                return checked(call(found.function, inner))
            except Failed as failed:
                raise HandlerError(f"part {part}: {failed.message}", code=failed.code) from failed

        return call_handler

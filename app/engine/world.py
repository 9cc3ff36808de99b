"""What the steps of one attempt ask of the world (:class:`app.nodes.step.World`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from app.engine.calling import Failed, call, checked
from app.engine.host import Host
from app.models.event import NewEvent
from app.nodes.api import Code, HandlerError
from app.nodes.registry import HandlerRegistry
from app.nodes.step import Call, Step

Secrets = Callable[[str], str | None]


class RunWorld:
    """Passes most on to the host; lets one thread speak at a time; calls handlers for handlers."""

    def __init__(self, host: Host, meta: Mapping[str, Any], handlers: HandlerRegistry, secrets: Secrets | None) -> None:
        self._host = host
        self._meta = meta
        self._handlers = handlers
        self._secrets = secrets
        self._speaking = Lock()
        self.check, self.cancelled, self.now = host.check, host.cancelled, host.now
        self.sleep, self.count = host.sleep, host.count

    def emit(self, event: NewEvent) -> None:
        with self._speaking:
            self._host.emit(event)

    def secret(self, name: str) -> str | None:
        return None if self._secrets is None else self._secrets(name)

    def handler(self, step: Step, ref: str, settings: Mapping[str, Any]) -> Call:
        found = self._handlers.find((ref,))
        if found is None:
            raise HandlerError(f"this worker has no handler {ref!r}")
        parsed, faults = found.read_settings(settings)
        if faults:
            raise HandlerError(f"settings of {ref}: {'; '.join(map(str, faults))}", code=Code.VALIDATION)

        def call_handler(value: Any, part: str) -> Any:
            self._host.check()
            key = f"{step.key}/{part}"
            inner = Step(input=value, settings=parsed, meta=self._meta, node=step.node, key=key, world=self)
            try:
                return checked(call(found.function, inner))
            except Failed as failed:
                raise HandlerError(f"part {part}: {failed.message}", code=failed.code) from failed

        return call_handler

"""What a handler sees of the run that it is a step of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from app.models.event import LOG, NODE_PROGRESS, NODE_TOKEN, NewEvent
from app.models.json_value import find_fault
from app.nodes.api import Code, HandlerError
from app.nodes.secrets import variable_of

LOOK_EVERY_S: Final = 0.5
_EVENTS: Final = {"progress": NODE_PROGRESS, "token": NODE_TOKEN, "log": LOG}

Call = Callable[[Any, str], Any]
"""Calls another handler: ``call(input, part) -> output``."""


class World(Protocol):
    """What a step asks of whoever executes it."""

    def emit(self, event: NewEvent) -> None: ...
    def check(self) -> None: ...
    def cancelled(self) -> bool: ...
    def now(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...
    def count(self, key: str, packet: str) -> int: ...
    def secret(self, name: str) -> str | None: ...
    def redact(self, text: str) -> str: ...
    def handler(self, step: Step, ref: str, settings: Mapping[str, Any]) -> Call: ...


class Step:
    """One execution of one node for one packet."""

    __slots__ = ("_open", "_world", "deadline", "input", "key", "meta", "node", "port", "settings")

    def __init__(
        self,
        *,
        input: Any,
        settings: Any,
        meta: Mapping[str, Any],
        node: str,
        key: str,
        world: World,
        deadline: float | None = None,
        port: str | None = None,
    ) -> None:
        self.input = input
        """The packet; the handler's own copy."""
        self.settings = settings
        """An instance of the handler's settings model, or the node's settings as written; not to be changed."""
        self.meta = meta
        """The run's meta; not to be changed."""
        self.node = node
        self.key = key
        """``run:packet``: the same for every attempt and retry, so that a side effect can be made once."""
        self.deadline = deadline
        """When the node's time is up, in seconds of :meth:`now`; ``None``: no limit of its own."""
        self.port = port
        """The input port that the packet came in by, if the edge names one."""
        self._world = world
        self._open = True

    # --- telling -------------------------------------------------------------------------------------------------

    def emit(self, type: str, data: Mapping[str, Any]) -> None:
        """Tell the run's watchers something: ``type`` is ``progress``, ``token`` or ``log``; ``data`` is JSON."""
        self._check_open()
        if type not in _EVENTS:
            raise HandlerError(f"a handler may emit {', '.join(_EVENTS)}, not {type!r}", code=Code.VALIDATION)
        data = dict(data)
        if (fault := find_fault(data)) is not None:
            raise HandlerError(f"{type} data {fault}", code=Code.VALIDATION)
        self._world.emit(NewEvent(_EVENTS[type], self.node, data))

    def progress(self, fraction: float, message: str = "") -> None:
        """Say how far it is: ``fraction`` from 0 to 1."""
        self.emit("progress", {"fraction": fraction} | ({"message": message} if message else {}))

    def token(self, text: str) -> None:
        """Pass on a piece of an answer as it arrives."""
        self.emit("token", {"text": text})

    def log(self, message: str, *, level: str = "info", **fields: Any) -> None:
        """Write a line into the run's log."""
        self.emit("log", {"level": level, "message": message} | fields)

    # --- asking --------------------------------------------------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        """Whether to give up: the run is cancelled, not ours any more, or this node's time is over."""
        return not self._open or self._world.cancelled() or self.overdue

    @property
    def overdue(self) -> bool:
        return self.deadline is not None and self._world.now() >= self.deadline

    def now(self) -> float:
        """Return the time in seconds of a clock that never goes back."""
        return self._world.now()

    def sleep(self, seconds: float) -> None:
        """Wait. The run may be taken from here meanwhile: cancelled, or handed to another worker, which starts the node
        again. Then this raises what handlers must let through (no subclass of ``Exception``).
        """
        left = seconds
        while left > 0:
            self._check_open()
            if self.overdue:
                raise HandlerError("the node's time is over", code=Code.TIMEOUT)
            pause = min(left, LOOK_EVERY_S)
            if self.deadline is not None:
                pause = min(pause, max(0.001, self.deadline - self._world.now()))
            self._world.sleep(pause)
            self._world.check()
            left -= pause

    def check(self) -> None:
        """Let the run be taken from here, as :meth:`sleep` does, without waiting."""
        self._check_open()
        self._world.check()

    def count(self, key: str) -> int:
        """Add one to the durable counter ``key``, once for this step however often it is repeated; return it."""
        self._check_open()
        return self._world.count(key, self.key)

    def secret(self, name: str) -> str:
        """Return a secret by its name: what the worker's environment has as ``ROLECALL_SECRET_<NAME>``.

        From then on its text is blotted out of this run's events, outputs and errors.

        Raises:
            HandlerError: this worker has no such secret.
        """
        value = self._world.secret(name)
        if value is None:
            raise HandlerError(f"this worker has no secret {name!r}; set {variable_of(name)} where it runs")
        return value

    def redact(self, text: str) -> str:
        """Return a text without the secrets that were asked for."""
        return self._world.redact(text)

    def handler(self, ref: str, settings: Mapping[str, Any]) -> Call:
        """Return another handler, to be called as ``call(input, part)`` any number of times and by several threads.

        ``part`` tells the calls of one step apart: it becomes part of each call's ``key``.

        Raises:
            HandlerError: this worker has no such handler, or the settings are wrong for it.
        """
        return self._world.handler(self, ref, settings)

    def close(self) -> None:
        """Make every later call fail: the node has been given up and its thread must not speak for it any more."""
        self._open = False

    def _check_open(self) -> None:
        if not self._open:
            raise HandlerError("the node's time is over", code=Code.TIMEOUT)

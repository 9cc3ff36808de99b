"""Calling a handler so that nothing it does gets out: not its exceptions, not its time."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Coroutine
from threading import Event, Thread
from typing import Any, Final

from app.engine.host import Cancelled, Interrupted
from app.errors import RolecallError, Unavailable
from app.models.json_value import find_fault
from app.nodes.api import Code, HandlerError
from app.nodes.step import LOOK_EVERY_S, Step

MAX_MESSAGE: Final = 2_000
ERROR: Final = "ERROR"
"""The code of an exception that no handler meant to raise."""

Function = Callable[[Step], Any]


class Failed(Exception):
    """A node's failure: a stable code and a text for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = str(code)
        self.message = message[:MAX_MESSAGE]


def call(function: Function, step: Step) -> Any:
    """Call a handler and return its output; ``None`` stands for its input.

    Raises:
        Failed: whatever the handler raised, and ``TIMEOUT`` when its deadline has passed. A plain function that does
            not return by then is left behind in its thread, where its step refuses to serve it any longer.
        Interrupted: the run is to stop here.
    """
    try:
        if step.overdue:  # before it has begun
            raise _overdue()
        output = _in_time(function, step) if step.deadline is not None else _finish(function(step), step)
    except Interrupted:
        raise
    except BaseException as error:  # a handler's SystemExit must not end the worker either
        raise _failed(error, step) from error
    return step.input if output is None else output


def checked(output: Any) -> Any:
    """Return a handler's output if it is JSON.

    Raises:
        Failed: it is not; the place is named.
    """
    fault = find_fault(output)
    if fault is not None:
        raise Failed(Code.VALIDATION, f"output {fault}")
    return output


def _finish(result: Any, step: Step) -> Any:
    return _await(result, step) if inspect.iscoroutine(result) else result


def _in_time(function: Function, step: Step) -> Any:
    """Run a handler in a thread of its own, so that its time can end though it does not return."""
    if inspect.iscoroutinefunction(function):
        return _await(function(step), step)
    done = Event()
    results: list[Any] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(_finish(function(step), step))
        except BaseException as error:  # carried over to the engine's thread
            errors.append(error)
        finally:
            done.set()

    context = contextvars.copy_context()
    Thread(target=context.run, args=(work,), name=f"node {step.node}", daemon=True).start()
    if not done.wait(_left(step)):
        step.close()
        raise _overdue()
    if errors:
        raise errors[0]
    return results[0]


def _await(coroutine: Coroutine[Any, Any, Any], step: Step) -> Any:
    """Run an ``async def`` handler on a loop of its own; cancel it when the run is or its time has passed."""

    async def watch() -> Any:
        task = asyncio.ensure_future(coroutine)
        try:
            while not task.done():
                if step.overdue:
                    raise _overdue()
                if step.cancelled:
                    step.check()
                    raise Cancelled
                pause = LOOK_EVERY_S if step.deadline is None else min(LOOK_EVERY_S, _left(step))
                await asyncio.wait({task}, timeout=pause)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=LOOK_EVERY_S)

    with asyncio.Runner() as runner:
        return runner.run(watch())


def _left(step: Step) -> float:
    return 0.0 if step.deadline is None else max(0.0, step.deadline - step.now())


def _overdue() -> HandlerError:
    return HandlerError("the node did not end within its timeoutMs", code=Code.TIMEOUT)


def _failed(error: BaseException, step: Step) -> Failed:
    try:
        text = str(error)
    except Exception:  # a handler's exception class may be broken too
        text = ""
    return Failed(_code(error), step.redact(text) or type(error).__name__)


def _code(error: BaseException) -> str:
    match error:
        case HandlerError():
            return error.code
        case Unavailable():
            return Code.TEMPORARY
        case TimeoutError():
            return Code.TIMEOUT
        case ConnectionError():
            return Code.NETWORK_ERROR
        case RolecallError() | MemoryError() | RecursionError():
            return Code.PERMANENT
        case Exception():
            return ERROR
        case _:
            return Code.PERMANENT

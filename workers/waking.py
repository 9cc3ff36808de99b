"""A worker's loop hears at once that a thread of its pool is free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def wake_when_done(pool: Any, hub: Any) -> None:
    """Make a pool of threads wake the worker's loop with each task that ends.

    Children of a prefork pool do that with their answer. A thread only lowers the count of tasks, which the loop looks
    at when something else wakes it: once a second, so that each slot would take one message a second.
    """
    apply = pool.on_apply

    def on_apply(target: Any, *args: Any, callback: Callable[..., object] | None = None, **options: Any) -> Any:
        def ended(*result: Any) -> None:
            try:
                if callback is not None:
                    callback(*result)
            finally:
                hub.call_soon(_nothing)

        return apply(target, *args, callback=ended, **options)

    pool.on_apply = on_apply


def _nothing() -> None:
    """Being called is all."""

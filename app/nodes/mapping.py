"""``core/map``: one handler for each item of a list, in order, a few at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

from pydantic import Field

from app.nodes import paths
from app.nodes.api import Code, HandlerError, HandlerSettings, handler
from app.nodes.step import Step

MAX_CONCURRENCY = 16
MAX_ITEMS = 10_000


class MapSettings(HandlerSettings):
    items: str
    """The path of the list in the packet."""
    handler: Annotated[str, Field(min_length=1)]
    settings: dict[str, Any] = Field(default_factory=dict)
    """Of that handler."""
    concurrency: Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)] = 1

    @property
    def calls(self) -> tuple[str, ...]:
        """The handlers that a worker must have besides this one."""
        return (self.handler,)


@handler("core/map", settings=MapSettings)
def map_items(step: Step) -> dict[str, Any]:
    """Give each item of the list at ``items`` to ``handler``; return ``{"items": [...]}`` in the list's order.

    The first failure is the node's; items after it are not begun.
    """
    settings: MapSettings = step.settings
    items = paths.get(step.input, settings.items)
    if not isinstance(items, list):
        raise HandlerError(f"there is no list at {settings.items!r} of the packet", code=Code.VALIDATION)
    if len(items) > MAX_ITEMS:
        raise HandlerError(f"{len(items):,} items are more than {MAX_ITEMS:,}", code=Code.VALIDATION)
    call = step.handler(settings.handler, settings.settings)

    def one(number: int) -> Any:
        if step.cancelled:
            step.check()
        return call(items[number], str(number))

    if settings.concurrency == 1:
        return {"items": [one(number) for number in range(len(items))]}
    pool = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="core-map")
    try:
        return {"items": list(pool.map(one, range(len(items))))}
    finally:
        pool.shutdown(wait=True, cancel_futures=True)

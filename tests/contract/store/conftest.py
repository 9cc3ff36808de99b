"""The stores that the one suite runs against, and what they are filled with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from app.ports import Store
from app.store.memory import MemoryStore
from app.store.mongo import MongoStore

T = TypeVar("T")


@pytest.fixture(params=["memory", "mongo"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """An empty, prepared store of each kind."""
    if request.param == "memory":
        made: Store = MemoryStore()
    else:
        made = MongoStore(request.getfixturevalue("mongo_url"), timeout_s=10)
    made.prepare()
    yield made
    made.close()


@pytest.fixture
def at_once() -> Callable[[Sequence[Callable[[], T]]], list[T]]:
    """Call functions in threads of their own, all at once; return what they returned, in order."""

    def run(calls: Sequence[Callable[[], T]]) -> list[T]:
        with ThreadPoolExecutor(max_workers=len(calls)) as pool:
            return [future.result(timeout=60) for future in [pool.submit(call) for call in calls]]

    return run

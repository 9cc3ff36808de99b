"""Several questions to several servers at once, so that a page waits for the slowest and no longer than it may."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from app.errors import Unavailable

PATIENCE_S = 4.0

Question = Callable[[], Any]


class Answers:
    """What was answered, and what kept the rest from being answered."""

    def __init__(self, futures: Mapping[str, Future[Any]], patience_s: float) -> None:
        self._values: dict[str, Any] = {}
        self._faults: dict[str, Unavailable] = {}
        for name, future in futures.items():
            if not future.done():
                self._faults[name] = Unavailable(f"{name} could not be read within {patience_s:g} s")
                continue
            try:
                self._values[name] = future.result()
            except Unavailable as fault:
                self._faults[name] = fault

    def get(self, name: str, default: Any = None) -> Any:
        """Return an answer, or ``default`` where there is none."""
        return self._values.get(name, default)

    def need(self, name: str) -> Any:
        """Return an answer without which there is no page.

        Raises:
            Unavailable: there is none.
        """
        if name in self._faults:
            raise self._faults[name]
        return self._values[name]

    @property
    def faults(self) -> dict[str, Unavailable]:
        """Return why some questions have no answer."""
        return self._faults


def gather(patience_s: float = PATIENCE_S, **questions: Question) -> Answers:
    """Ask every question at once and wait for at most ``patience_s`` seconds.

    A question that is not answered by then goes on until its own time-out and is not waited for. Errors other than
    ``Unavailable`` are raised.
    """
    pool = ThreadPoolExecutor(max_workers=len(questions), thread_name_prefix="page")
    futures = {name: pool.submit(question) for name, question in questions.items()}
    wait(futures.values(), timeout=patience_s)
    pool.shutdown(wait=False, cancel_futures=True)
    return Answers(futures, patience_s)

"""(h) Pages of the list of runs, out of a ledger with many ended ones: the first, and one at the far end of the list.

The peer of a page at the far end is the first page of the same list: a cursor must not cost more the deeper it is.
Pages of filtered lists have no peer; they only inform. The runs are spread over 30 days, so that the newest of them do
not all lie in the first second that the list looks at.
"""

from __future__ import annotations

import random
import time
from time import perf_counter

from pymongo import MongoClient

from app.models.run import Run, RunStatus
from app.ports import RunFilter
from app.store import records
from app.store.mongo import MongoStore
from benchmarks.rows import Bound, Row, interleaved, quantile
from benchmarks.world import World

RUNS = 20_000
SPAN_MS = 30 * 24 * 3_600_000
BATCH = 1_000
FILTERS = {
    "one deployment": RunFilter(deployment="deployment3"),
    "failed": RunFilter(status=RunStatus.FAILED),
    "one session": RunFilter(session="session5"),
    "failed of one deployment": RunFilter(deployment="deployment3", status=RunStatus.FAILED),
}


def measure(world: World, *, pairs: int, quick: bool) -> list[Row]:
    runs, times = (RUNS // 10, 3) if quick else (RUNS, 9)
    url = world.mongo_url.replace("/rolecall", "/lists")
    now_ms = int(time.time() * 1000)
    fill(url, runs, now_ms)
    store = MongoStore(url, timeout_s=30)

    def page_ms(where: RunFilter, after: str | None = None) -> float:
        taken = []
        for _ in range(times):
            start = perf_counter()
            store.list_runs(where, after=after, limit=50)
            taken.append((perf_counter() - start) * 1000)
        return quantile(taken, 0.5)

    far = records.cursor_of(records.position(ended_run(runs // 50, runs, now_ms)))
    last, first = interleaved(pairs, lambda: page_ms(RunFilter(), far), lambda: page_ms(RunFilter()))
    filtered = {name: [page_ms(where) for _ in range(pairs)] for name, where in FILTERS.items()}
    store.close()
    return [
        Row(f"list of {runs:,} runs, far page / first page, p50", "ms", last, first, Bound("<=", 2)),
        *(Row(f"first page of {name}, p50", "ms", values) for name, values in filtered.items()),
    ]


def fill(url: str, runs: int, now_ms: int) -> None:
    """Store ended runs, many at a time."""
    store = MongoStore(url, timeout_s=30)
    store.prepare()
    store.close()
    with MongoClient[dict[str, object]](url) as client:
        ledger = client.get_default_database()["runs"]
        for begin in range(0, runs, BATCH):
            numbers = range(begin, min(runs, begin + BATCH))
            ledger.insert_many(
                [records.run_document(ended_run(number, runs, now_ms)) for number in numbers], ordered=False
            )


def ended_run(number: int, runs: int, now_ms: int) -> Run:
    """Return run ``number`` of ``runs``, the last of which was accepted just now; one in 20 has failed."""
    chance = random.Random(number)
    at_ms = now_ms - SPAN_MS + SPAN_MS * (number + 1) // runs
    candidates = [{"label": label, "weight": 1, "eligible": True, "reasons": []} for label in ("stable", "canary")]
    return Run(
        run_id=f"run-{number:09}",
        deployment_id=f"deployment{number % 10}",
        variant="canary" if chance.random() < 0.1 else "stable",
        flow_id="flow",
        version_id="0123456789abcdef",
        target_role=f"role{number % 3}",
        created_ms=at_ms,
        started_ms=at_ms + 10,
        ended_ms=at_ms + 1_000,
        status=RunStatus.FAILED if chance.random() < 0.05 else RunStatus.COMPLETED,
        input={"name": "Ada"},
        output={"ok": True},
        meta={"session_id": f"session{chance.randrange(runs // 20 + 1)}"},
        explain={"candidates": candidates, "picked": "stable"},
    )

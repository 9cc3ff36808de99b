"""Reads what is on record after the soak: all at once, past the adapters' one-run-at-a-time questions."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import redis
from pymongo import MongoClient

from app.config import Settings
from app.models.event import Event
from app.models.run import Run, RunStatus
from app.store import records
from tests.soak.proof import Leftovers, Trace

Database = Any


def read_traces(settings: Settings, witness_file: Path) -> dict[str, Trace]:
    """Return all runs of the ledger by id."""
    with MongoClient[dict[str, Any]](settings.mongo_url) as client:
        database = client.get_default_database()
        runs = [records.run_of(document) for document in database["runs"].find()]
        events = _events(database)
        counts = Counter(document["key"] for document in database["counted"].find({}, {"key": 1}))
    witnesses = _witnesses(witness_file)
    return {run.run_id: Trace(run, events[run.run_id], witnesses[run.run_id], _own(counts, run)) for run in runs}


def _own(counts: Counter[str], run: Run) -> dict[str, int]:
    prefix = f"soak:{run.input.get('request', '')}:"
    return {key: counts[key] for key in (f"{prefix}{name}" for name in ("once", "before", "after")) if key in counts}


def _events(database: Database) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = defaultdict(list)
    for chunk in database["events"].find().sort([("runId", 1), ("last", 1)]):
        found[chunk["runId"]] += records.events_of(chunk)
    return found


def _witnesses(file: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    if file.exists():
        for line in file.read_text().splitlines():
            run_id, node = line.split("\t")
            found[run_id].append(node)
    return found


def open_runs(settings: Settings) -> int:
    """Return how many runs of the ledger have not ended."""
    with MongoClient[dict[str, Any]](settings.mongo_url) as client:
        opened = {"status": {"$in": [status.value for status in RunStatus if not status.ended]}}
        return int(client.get_default_database()["runs"].count_documents(opened))


def read_leftovers(settings: Settings) -> Leftovers:
    """Return what the live store still has of runs."""
    prefix = settings.key_prefix
    entries: dict[str, list[str]] = {}
    kept: list[str] = []
    with redis.Redis.from_url(settings.redis_url, decode_responses=True) as client:
        for key in client.scan_iter(f"{prefix}*", count=1000):
            name = key.removeprefix(prefix)
            if name.startswith("run:"):
                if client.ttl(key) == -1:
                    kept.append(name)
            elif name.startswith("queued:") or name in ("leases", "changed", "ended"):
                entries[name] = client.zrange(key, 0, -1)
            elif name.startswith("running:"):
                entries[name] = sorted(client.smembers(key))
    return Leftovers(entries, kept)

"""``make soak``: kill, freeze and cut off things under load, then prove from the records that nothing was lost."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.config import Settings
from tests.servers import wait_until
from tests.soak.faults import Saboteur, plan
from tests.soak.flows import BY_NAME, LONGEST_RUN_S
from tests.soak.load import Load
from tests.soak.proof import Violation, knows_only_the_living, left_nothing, prove
from tests.soak.records import open_runs, read_leftovers, read_traces
from tests.soak.report import explain, table
from tests.soak.world import World

pytestmark = pytest.mark.soak

FLOWS = {name: deployment.flow for name, deployment in BY_NAME.items()}
NUDGED_AGAIN_S = 30.0
"""A run is nudged by housekeeping at most once in this time."""
BACKLOG_S = 30.0
"""Time to work off what piled up during the last faults."""
ARCHIVE_ROUNDS = 20
"""Rounds of housekeeping in which everything that has ended is archived."""


def settle_bound_s(settings: Settings) -> float:
    """Return how long after the last fault every accepted run has ended at the latest."""
    gap_s = settings.heartbeat_interval_s + 1 + settings.lease_ttl_s
    broken_s = settings.lease_ttl_s + 5  # the longest pause before the last attempt
    return gap_s + broken_s + NUDGED_AGAIN_S + LONGEST_RUN_S + BACKLOG_S + 10 * settings.housekeeping_s


def test_nothing_is_lost_whatever_dies(tmp_path: Path) -> None:
    seconds = 60 * float(os.environ.get("SOAK_MINUTES") or 10)
    seed = int(os.environ.get("SOAK_SEED") or time.time())
    quiet = os.environ.get("SOAK_FAULTS") == "0"
    times: dict[str, float] = {}
    print(f"\nsoak: {seconds / 60:g} minutes, SOAK_SEED={seed}, logs in {tmp_path}")
    with _timed(times, "all"), World(tmp_path) as world:
        load = Load(world.url, seed)
        load.prepare()
        saboteur = Saboteur(world, [] if quiet else plan(seed, seconds))
        violations: list[Violation] = []
        with _timed(times, "load"):
            load.start()
            saboteur.start()
            time.sleep(seconds)
            saboteur.stop()
        with _timed(times, "heal"):
            world.heal()
            load.stop()
            violations += _within("health", world.until_well)
            saboteur.undrain()
        with _timed(times, "settle"):
            violations += _within("settled", lambda: _until_ended(world.settings))
            load.finish()
            violations += _within("archived", lambda: _until_archived(world.settings))
        violations += knows_only_the_living(world.registered(), world.living())
        violations += left_nothing(read_leftovers(world.settings))
        violations += [Violation("answers", text) for text in load.book.strange]
        with _timed(times, "proof"):
            traces = read_traces(world.settings, world.witness_file)
            violations += prove(
                traces,
                flows=FLOWS,
                posts=load.book.posts,
                told=load.book.told,
                cancels=load.book.cancels,
                max_losses=world.settings.run_max_attempts,
            )
        exits = world.exits()
    print("\n".join(saboteur.log.lines))
    print(table(seed=seed, traces=traces, book=load.book, log=saboteur.log, exits=exits, times=times))
    assert not violations, explain(violations, traces)


@contextmanager
def _timed(times: dict[str, float], what: str) -> Iterator[None]:
    began = time.monotonic()
    try:
        yield
    finally:
        times[what] = time.monotonic() - began


def _within(rule: str, wait: Callable[[], None]) -> list[Violation]:
    """Wait for something; that it does not come about is one more broken rule, and the proof goes on."""
    try:
        wait()
    except TimeoutError as error:
        return [Violation(rule, str(error))]
    return []


def _until_ended(settings: Settings) -> None:
    """Wait until the ledger has an end for every run."""
    bound_s = settle_bound_s(settings)
    wait_until(lambda: open_runs(settings) == 0, seconds=bound_s, what="every run has ended", step=0.5)


def _until_archived(settings: Settings) -> None:
    """Wait until the live store has no run in any index."""

    def forgotten() -> bool:
        return not any(read_leftovers(settings).entries.values())

    bound_s = ARCHIVE_ROUNDS * settings.housekeeping_s
    wait_until(forgotten, seconds=bound_s, what="no index has a run any more", step=0.5)

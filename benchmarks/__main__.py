"""``python -m benchmarks [a b ...] [--pairs N] [--quick]``: measure, print one table, fail if a bound is broken."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import drain, engine, first_event, latency, lists, register, resolving, streams
from benchmarks.rows import Row, table
from benchmarks.world import World

MEASURES: dict[str, Callable[..., list[Row]]] = {
    "a": drain.measure,
    "b": latency.measure,
    "c": first_event.measure,
    "d": resolving.measure,
    "e": engine.measure,
    "f": register.measure,
    "g": streams.measure,
    "h": lists.measure,
}


def main() -> int:
    """Run the measures; return 1 if a bound is broken."""
    asked = _arguments()
    # So that a SIGTERM, too, ends everything that was started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    pairs = asked.pairs or (2 if asked.quick else 5)
    rows: list[tuple[str, Row]] = []
    with tempfile.TemporaryDirectory(prefix="rolecall-bench-") as folder, World(Path(folder)) as world:
        for letter in asked.measures or MEASURES:
            started = time.monotonic()
            print(f"measuring {letter} ...", end=" ", file=sys.stderr, flush=True)
            rows += [(letter, row) for row in MEASURES[letter](world, pairs=pairs, quick=asked.quick)]
            print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, ", end="")
    print(f"load {os.getloadavg()[0]:.1f} at the end, {_additions_ms():.0f} ms CPU for a million additions; ", end="")
    print(f"{pairs} pairs{', quick' if asked.quick else ''}\n")
    print(table(rows))
    broken = [row.what for _, row in rows if not row.holds]
    if broken:
        print(f"\nbroken: {'; '.join(broken)}")
    return 1 if broken else 0


def _additions_ms() -> float:
    """Return how quick this machine is now; bounds in microseconds mean little without it."""
    started, total = time.thread_time(), 0
    for number in range(1_000_000):
        total += number
    return (time.thread_time() - started) * 1000


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Rolecall beside its peers.")
    parser.add_argument("measures", nargs="*", metavar="a..h", help="which; default: all")
    parser.add_argument("--pairs", type=int, help="passes of each side (5; with --quick 2)")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter passes: a try, not a measurement")
    asked = parser.parse_args()
    # Not by `choices`: with those argparse refuses the empty list too.
    if unknown := [letter for letter in asked.measures if letter not in MEASURES]:
        parser.error(f"there is no measure {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    return asked


if __name__ == "__main__":
    sys.exit(main())

"""The table at the end of a soak, and the words for what is broken."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.models.event import RUN_REROUTED, Event
from tests.soak.faults import Log
from tests.soak.load import Book
from tests.soak.proof import LIVE_STATE, Trace, Violation

SHOWN_RUNS = 12


@dataclass(frozen=True, slots=True)
class Recovery:
    """How long it took from a fault to the end of a run that it hit."""

    seconds: float
    fault: str
    run_id: str


def longest_recovery(traces: Iterable[Trace], log: Log) -> Recovery | None:
    """Return the longest time from the last fault before a reroute to the end of the rerouted run."""
    worst: Recovery | None = None
    for trace in traces:
        if trace.run.ended_ms is None:
            continue
        for event in trace.events:
            before = [(at, fault) for at, fault in log.begun if at <= event.at_ms]
            if event.type != RUN_REROUTED or not before:
                continue
            at_ms, fault = before[-1]
            seconds = (trace.run.ended_ms - at_ms) / 1000
            if worst is None or seconds > worst.seconds:
                worst = Recovery(seconds, f"{fault.kind} {fault.target}", trace.run.run_id)
    return worst


def table(
    *, seed: int, traces: Mapping[str, Trace], book: Book, log: Log, exits: Sequence[str], times: Mapping[str, float]
) -> str:
    """Return the soak in numbers."""
    runs = [trace.run for trace in traces.values()]
    reroutes = Counter(_why(e) for t in traces.values() for e in t.events if e.type == RUN_REROUTED)
    ends = Counter(run.status.value if run.error is None else f"failed {run.error.code}" for run in runs)
    recovery = longest_recovery(traces.values(), log)
    told = book.told
    rows = [
        ("faults", f"{sum(log.counts().values())}: {_counted(log.counts())}"),
        ("runs", f"{len(runs)} on record, {sum(post.fate == 'accepted' for post in book.posts)} accepted"),
        ("ends", _counted(ends)),
        ("reroutes", f"{sum(reroutes.values())}: {_counted(reroutes)}"),
        ("losses", str(sum(run.losses for run in runs))),
        ("attempts", _counted(Counter(f"{run.attempt}" for run in runs))),
        (
            "longest recovery",
            "-" if recovery is None else f"{recovery.seconds:.1f} s ({recovery.fault}, run {recovery.run_id})",
        ),
        (
            "streams",
            f"{len(told)}, {sum(t.reconnects for t in told)} reconnects, {sum(len(t.lost) for t in told)} resets",
        ),
        ("answers", _counted(book.answers)),
        ("slowest answers", _slowest(book.slowest_s)),
        ("ended by itself", "; ".join(exits) or "nobody"),
        ("times", ", ".join(f"{what} {took:.0f} s" for what, took in times.items())),
        ("again", f"SOAK_SEED={seed}"),
    ]
    return "\n".join(f"  {name:<17} {text}" for name, text in rows)


def explain(violations: Sequence[Violation], traces: Mapping[str, Trace]) -> str:
    """Return what is broken, the first few runs with all their events."""
    counted = _counted(Counter(violation.rule for violation in violations))
    parts = [f"{len(violations)} broken rules: {counted}"]
    by_run: dict[str, list[Violation]] = {}
    # What is left in the live store follows from other faults more often than it is one.
    for violation in sorted(violations, key=lambda each: each.rule == LIVE_STATE):
        by_run.setdefault(violation.run_id, []).append(violation)
    parts += [str(violation) for violation in by_run.pop("", [])[:SHOWN_RUNS]]
    for run_id, its in list(by_run.items())[:SHOWN_RUNS]:
        parts += [str(violation) for violation in its]
        if run_id in traces:
            parts.append(_story(traces[run_id]))
    if len(by_run) > SHOWN_RUNS:
        parts.append(f"... and {len(by_run) - SHOWN_RUNS} more runs")
    return "\n".join(parts)


def _story(trace: Trace) -> str:
    run = trace.run
    ended = "" if run.ended_ms is None else f", ended {_clock(run.ended_ms)}"
    head = (
        f"    {run.deployment_id} -> {run.target_role}, {run.status.value}, accepted {_clock(run.created_ms)}{ended}, "
        f"attempt {run.attempt}, losses {run.losses}, rev {run.rev}, witnesses {list(trace.witnesses)}"
    )
    return "\n".join([head, *map(_line, trace.events)])


def _line(event: Event) -> str:
    data = "" if event.data is None else str(event.data)[:160]
    return f"    {_clock(event.at_ms)} {event.seq:>3} a{event.attempt} {event.type} {event.node or ''} {data}"


def _clock(at_ms: int) -> str:
    """Return the time of day as logs have it, so that what happened then is found there."""
    return f"{time.strftime('%H:%M:%S', time.localtime(at_ms / 1000))}.{at_ms % 1000:03}"


def _slowest(took_s: Mapping[str, float]) -> str:
    first = sorted(took_s.items(), key=lambda each: -each[1])[:5]
    return ", ".join(f"{what} {took:.1f} s" for what, took in first)


def _why(event: Event) -> str:
    return str((event.data or {}).get("reason", "?"))[:40]


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda each: -each[1])) or "none"

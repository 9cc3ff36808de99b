"""Why a queued run waits: what an operator asks first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Literal, Protocol

from app.errors import NotFound, ServerUnavailable
from app.models.role import QueueStats, RegisterSnapshot
from app.models.run import RUN_SCHEMA, Run, RunStatus
from app.ports import Live
from app.roles import Needs, RoleFault, RoleTable

WaitingFor = Literal["no_workers", "saturated", "draining", "missing_handler", "waiting_turn", "newer_schema"]


class Snapshots(Protocol):
    """Where the register's latest snapshot comes from."""

    def get(self, max_age_s: float | None = None) -> tuple[RegisterSnapshot, int]:
        """Return a snapshot, at most so old if that is said, and its age in milliseconds."""


_BY_FAULT: dict[RoleFault, WaitingFor] = {
    "no_workers": "no_workers",
    "unhealthy": "no_workers",
    "does_not_execute": "no_workers",
    "draining": "draining",
    "missing_handler": "missing_handler",
}


def _no_queues(_: Collection[str]) -> dict[str, QueueStats]:
    return {}


def waiting_for(run: Run, needs: Needs, snapshot: RegisterSnapshot, stats: QueueStats) -> WaitingFor:
    """Return why a queued run is not being executed.

    ``no_workers``: nobody healthy answers for its role. ``draining``, ``missing_handler``: those who do take no new
    runs, or cannot execute this one. ``saturated``: every slot of the role is in use. ``waiting_turn``: it is about to
    be taken, in its pause, or behind others. ``newer_schema``: it was accepted by a newer Rolecall than this one.
    """
    if run.schema > RUN_SCHEMA:
        return "newer_schema"
    fault = RoleTable(snapshot, _no_queues).fault(run.target_role, needs)
    if fault is not None:
        return _BY_FAULT[fault]
    role = snapshot.roles[run.target_role]
    return "saturated" if stats.running >= role.slots else "waiting_turn"


class Waiting:
    """Says of queued runs why they wait. Thread-safe."""

    def __init__(self, live: Live, snapshots: Snapshots, needs: Callable[[str, str], Needs]) -> None:
        self._live = live
        self._snapshots = snapshots
        self._needs = needs

    def explain(self, runs: Iterable[Run]) -> list[Run]:
        """Return the runs, those that are queued with ``waiting_for``: 1 round trip to Redis if there are any.

        While nobody knows who is alive they are returned as they are.
        """
        runs = list(runs)
        roles = {run.target_role for run in runs if run.status is RunStatus.QUEUED}
        if not roles:
            return runs
        try:
            snapshot, _ = self._snapshots.get()
            queues = self._live.queues(roles)
        except ServerUnavailable:
            return runs
        if not snapshot.known:
            return runs
        return [
            run.with_(waiting_for=waiting_for(run, self._needs_of(run), snapshot, queues[run.target_role]))
            if run.status is RunStatus.QUEUED
            else run
            for run in runs
        ]

    def _needs_of(self, run: Run) -> Needs:
        try:
            return self._needs(run.flow_id, run.version_id)
        except (NotFound, ServerUnavailable):
            return ()

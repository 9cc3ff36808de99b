"""Replaying runs that failed for good: what would be started again, and starting it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from app.errors import RolecallError, Unavailable
from app.models.base import Request, parse
from app.models.run import Run, RunStatus
from app.ports import RunFilter
from app.runs.service import Runs

PAGE = 100


class ReplayRequest(Request):
    """The body of ``POST /api/v1/runs/replay``. Filters that are left out match every run."""

    status: Literal["failed", "cancelled"] = "failed"
    deployment: str | None = None
    variant: str | None = None
    role: str | None = None
    session: str | None = None
    code: str | None = None
    """The code of the error, like ``worker_lost``."""
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    """So many runs at most, newest first."""
    dry_run: bool = True
    """Only say which runs these are."""


@dataclass(slots=True)
class Replayed:
    """What a replay found and did."""

    dry_run: bool
    runs: list[tuple[Run, Run | None]] = field(default_factory=list)
    """Each run that matched, with the one that repeats it."""
    refused: list[tuple[Run, RolecallError]] = field(default_factory=list)
    more: bool = False
    """There are others: the limit was reached, or the fleet could take no more."""

    def to_wire(self) -> dict[str, Any]:
        return {
            "dryRun": self.dry_run,
            "runs": [
                {
                    "runId": old.run_id,
                    "deploymentId": old.deployment_id,
                    "error": None if old.error is None else old.error.to_wire(),
                    "replayedBy": None if new is None else new.run_id,
                }
                for old, new in self.runs
            ],
            "refused": [{"runId": old.run_id, "code": why.code, "detail": str(why)} for old, why in self.refused],
            "more": self.more,
        }


def replay(runs: Runs, body: dict[str, Any]) -> Replayed:
    """Start anew, resolved again, the ended runs that a filter names; unless told otherwise only say which.

    Each is replayed once however often this is asked for: the new run's idempotency key names the old one. It stops
    where nothing can be started just now.

    Raises:
        BadRequest: with every fault of ``body``.
    """
    wanted = parse(ReplayRequest, body)
    found = Replayed(wanted.dry_run)
    for old in _matching(runs, wanted):
        if len(found.runs) + len(found.refused) == wanted.limit:
            found.more = True
            break
        try:
            found.runs.append((old, None if wanted.dry_run else runs.retry(old.run_id, key=f"replay:{old.run_id}")))
        except Unavailable as error:
            found.refused.append((old, error))
            found.more = True
            break
        except RolecallError as error:
            found.refused.append((old, error))
    return found


def _matching(runs: Runs, wanted: ReplayRequest) -> list[Run]:
    """Return the runs to replay, and one more if there are others."""
    where = RunFilter(
        deployment=wanted.deployment,
        variant=wanted.variant,
        role=wanted.role,
        status=RunStatus(wanted.status),
        session=wanted.session,
    )
    matching: list[Run] = []
    after = None
    while len(matching) <= wanted.limit:
        page = runs.list(where, after=after, limit=PAGE)
        matching += [run for run in page.items if wanted.code in (None, run.error.code if run.error else None)]
        after = page.next
        if after is None:
            break
    return matching[: wanted.limit + 1]

"""The commands about runs that failed for good, against an API that a test writes."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.test_cli import RUN, Api, api, rolecall

__all__ = ["api"]

REPLAY = ("POST", "/api/v1/runs/replay")
ROW = {"runId": "r1", "deploymentId": "shop", "error": {"code": "worker_lost"}, "replayedBy": None}


def said(**changes: Any) -> dict[str, Any]:
    return {"dryRun": True, "runs": [ROW], "refused": [], "more": False} | changes


def test_replay_lists_before_it_starts_anything(api: Api) -> None:
    api.answers[REPLAY] = said(more=True)
    result = rolecall("replay", "--deployment", "shop", "--code", "worker_lost", api=api)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "RUN  DEPLOYMENT  ERROR        REPLAYED BY",
        "r1   shop        worker_lost  -",
    ]
    assert "--yes" in result.stderr
    assert "more of them" in result.stderr
    [(*_, body)] = api.asked
    assert body == {"deployment": "shop", "code": "worker_lost", "status": "failed", "limit": 100, "dryRun": True}


def test_replay_starts_them_when_told_so(api: Api) -> None:
    refused = [{"runId": "r2", "code": "deployment_not_found", "detail": "no deployment 'old'"}]
    api.answers[REPLAY] = said(dryRun=False, runs=[ROW | {"replayedBy": "r9"}], refused=refused)
    result = rolecall("replay", "--yes", api=api)
    assert result.stdout.splitlines()[1] == "r1   shop        worker_lost  r9"
    assert result.stderr == "not replayed: r2: no deployment 'old' [deployment_not_found]\n"
    assert api.asked[0][2]["dryRun"] is False


def test_replay_of_nothing_says_so(api: Api) -> None:
    api.answers[REPLAY] = said(runs=[])
    assert rolecall("replay", api=api).stdout == "No run matches.\n"
    assert json.loads(rolecall("replay", "--json", api=api).stdout)["runs"] == []


def test_retry_shows_the_new_run(api: Api) -> None:
    api.answers["POST", "/api/v1/runs/r1/retry"] = RUN | {"runId": "r9"}
    assert "run r9: queued" in rolecall("retry", "r1", api=api).stdout

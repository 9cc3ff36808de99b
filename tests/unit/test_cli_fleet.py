"""Draining from the command line, against an API that a test writes."""

from __future__ import annotations

import json

import pytest

from tests.unit.test_cli import Api, api, rolecall

__all__ = ["api"]

FLEET = {"workers": [{"node": "worker-2@host", "instance_id": "6f1c"}], "roles": {}}
DRAINED = {"drained": True, "by": "127.0.0.1", "at": "2026-11-30T21:40:00.000Z"}


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("gpu-worker", "/admin/roles/gpu-worker"),
        ("worker-2@host", "/admin/workers/worker-2@host"),
        ("6f1c", "/admin/workers/6f1c"),
        ("down@host", "/admin/workers/down@host"),
    ],
)
def test_drain_finds_out_whether_a_worker_or_a_role_is_meant(api: Api, name: str, path: str) -> None:
    api.answers["GET", "/admin/workers"] = FLEET
    api.answers["POST", f"{path}/drain"] = DRAINED | {"node": name}
    api.answers["POST", f"{path}/undrain"] = {"drained": False, "node": name}

    assert rolecall("drain", name, api=api).stdout == f"worker {name}: drained\n"
    assert rolecall("drain", name, "--force", api=api).exit_code == 0
    assert rolecall("undrain", name, api=api).stdout == f"worker {name}: takes runs\n"

    assert [body for method, _, body in api.asked if method == "POST"] == [{"force": False}, {"force": True}, None]


def test_undrain_says_that_the_role_still_drains(api: Api) -> None:
    api.answers["GET", "/admin/workers"] = FLEET
    api.answers["POST", "/admin/workers/worker-2@host/undrain"] = {"drained": True, "node": "worker-2@host"}
    assert "still drained, with its whole role" in rolecall("undrain", "worker-2@host", api=api).stdout


def test_a_drain_that_takes_the_last_worker_is_refused_with_the_variants(api: Api) -> None:
    api.answers["GET", "/admin/workers"] = FLEET
    problem = {"code": "last_of_role", "detail": "without role 'gpu' nobody could run the variants 'canary' of 'hello'"}
    api.answers["POST", "/admin/roles/gpu/drain"] = (409, problem)
    result = rolecall("drain", "gpu", api=api)
    assert (result.exit_code, result.stderr) == (1, f"rolecall: {problem['detail']} [last_of_role]\n")


def test_drain_answers_programs_as_the_api_does(api: Api) -> None:
    api.answers["GET", "/admin/workers"] = FLEET
    api.answers["POST", "/admin/roles/gpu/drain"] = answer = DRAINED | {"role": "gpu"}
    assert json.loads(rolecall("drain", "gpu", "--json", api=api).stdout) == answer
    assert rolecall("drain", "gpu", api=api).stdout == "role gpu: drained\n"

"""The command line against an API that is a table of answers."""

from __future__ import annotations

import http.server
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from app.cli import main
from app.stack.control import Control
from app.stack.supervisor import State, Status

RUN = {
    "runId": "r1",
    "status": "queued",
    "deploymentId": "greeting",
    "variant": "stable",
    "flowId": "greeting",
    "versionId": "v1",
    "targetRole": "worker",
    "attempt": 1,
    "worker": None,
    "output": None,
    "error": None,
    "createdAt": "2026-11-30T21:40:00.123Z",
    "endedAt": None,
}
COMPLETED = RUN | {
    "status": "completed",
    "output": {"greeting": "Hello Ada"},
    "endedAt": "2026-11-30T21:40:01.000Z",
    "worker": {"instance_id": "i", "node": "worker@host", "role": "worker"},
}
FAILED = RUN | {
    "status": "failed",
    "error": {"code": "PERMANENT", "message": "no way", "attempt": 1},
    "endedAt": "2026-11-30T21:40:01.000Z",
}
EVENTS = [
    {"run_id": "r1", "seq": 1, "attempt": 1, "type": "run.queued", "at": "2026-11-30T21:40:00.123Z"},
    {
        "run_id": "r1", "seq": 2, "attempt": 1, "type": "node.completed", "at": "2026-11-30T21:40:00.456Z",
        "node": "greet", "data": {"output": "Hello Ada, " * 30},
    },
    {"run_id": "r1", "seq": 3, "attempt": 1, "type": "run.completed", "at": "2026-11-30T21:40:01.000Z"},
]  # fmt: skip


class Api(http.server.ThreadingHTTPServer):
    """Answers from a table ``(method, path) -> body | (status, body)`` and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[tuple[str, str], Any] = {}
        self.asked: list[tuple[str, str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Api

    def do_GET(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((self.command, self.path, json.loads(content) if content else None))
        problem = (404, {"code": "not_found", "detail": f"no {self.path}"})
        answer = self.server.answers.get((self.command, self.path.partition("?")[0]), problem)
        status, body = answer if isinstance(answer, tuple) else (200, answer)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_PUT = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def rolecall(*words: str, api: Api | None = None) -> Result:
    result = CliRunner().invoke(main, [*words, *(["--url", api.url] if api else [])])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_import_sends_each_file_as_it_is_and_shows_versions_and_warnings(api: Api, tmp_path: Path) -> None:
    flow = {"flowId": "a", "versionId": "v1", "number": 1, "published": True}
    api.answers["POST", "/api/v1/flows/import"] = (
        201, {"flows": [flow | {"warnings": [
            {"at": "/flows/a/edges/0", "message": "kafka is not spoken", "severity": "warning", "mend": "use redis"},
            {"at": "/flowdsl", "message": "is '1.1.0'"},
        ]}]},
    )  # fmt: skip
    (tmp_path / "a.flowdsl.json").write_text('{"flowdsl": "1.0.0"}')
    result = rolecall("import", str(tmp_path / "a.flowdsl.json"), "--publish", api=api)
    assert result.exit_code == 0
    assert api.asked == [("POST", "/api/v1/flows/import?publish=true", {"flowdsl": "1.0.0"})]
    assert result.stdout.splitlines() == ["FLOW  VERSION  NUMBER  PUBLISHED", "a     v1       1       yes"]
    assert result.stderr.splitlines() == [
        "warning: a /flows/a/edges/0: kafka is not spoken; use redis",
        "warning: a /flowdsl: is '1.1.0'",
    ]


def test_deploy_creates_what_is_not_there_and_replaces_what_is(api: Api, tmp_path: Path) -> None:
    file = tmp_path / "checkout.json"
    file.write_text(json.dumps({"variants": [{"label": "a"}]}))
    path = "/api/v1/deployments/checkout"
    api.answers["PUT", path] = {"id": "checkout", "rev": 1, "variants": [{}]}
    assert rolecall("deploy", str(file), api=api).stdout == "deployment checkout: rev 1, 1 variants\n"
    api.answers["GET", path] = {"rev": 4}
    assert rolecall("deploy", str(file), api=api).exit_code == 0
    sent = [body for method, _, body in api.asked if method == "PUT"]
    assert sent == [{"variants": [{"label": "a"}]}, {"variants": [{"label": "a"}], "rev": 4}]


def test_a_rev_in_the_file_is_sent_as_it_is(api: Api, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps({"id": "checkout", "rev": 3}))
    api.answers["PUT", "/api/v1/deployments/checkout"] = (
        409, {"code": "rev_conflict", "detail": "deployment 'checkout' is at rev 4"},
    )  # fmt: skip
    result = rolecall("deploy", str(file), api=api)
    assert [method for method, _, _ in api.asked] == ["PUT"]
    assert (result.exit_code, result.stderr) == (1, "rolecall: deployment 'checkout' is at rev 4 [rev_conflict]\n")


def test_a_refusal_shows_every_fault_with_its_place(api: Api, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("{}")
    faults = [{"at": "/variants/0/weight", "message": "must be an integer"}]
    api.answers["PUT", "/api/v1/deployments/x"] = (
        400, {"code": "bad_request", "detail": "1 fault", "errors": faults},
    )  # fmt: skip
    result = rolecall("deploy", str(file), api=api)
    assert result.exit_code == 1
    assert result.stderr == "rolecall: 1 fault [bad_request]\n  /variants/0/weight: must be an integer\n"


def test_a_refused_document_shows_faults_mends_and_warnings(api: Api, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("{}")
    fault = {"at": "/flows/x/edges/0/to", "message": "names no node", "severity": "error", "mend": "did you mean 'a'?"}
    warning = {"at": "/flowdsl", "message": "is None", "severity": "warning"}
    api.answers["POST", "/api/v1/flows/import"] = (
        400, {"code": "invalid_document", "detail": "1 fault", "errors": [fault], "warnings": [warning]},
    )  # fmt: skip
    result = rolecall("import", str(file), api=api)
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "rolecall: 1 fault [invalid_document]",
        "  /flows/x/edges/0/to: names no node; did you mean 'a'?",
        "  warning: /flowdsl: is None",
    ]


def test_resolve_shows_the_pick_and_why_the_others_are_out(api: Api) -> None:
    api.answers["POST", "/api/v1/deployments/greeting/resolve"] = {
        "variant": "stable", "flowId": "greeting", "versionId": "v1", "targetRole": "worker",
        "explain": {
            "by": "sticky", "roleReason": "most_free",
            "candidates": [
                {"label": "stable", "weight": 80, "effective": 1.0, "eligible": True, "reasons": []},
                {"label": "canary", "weight": 20, "effective": 0.0, "eligible": False, "reasons": ["no_workers"]},
            ],
        },
    }  # fmt: skip
    result = rolecall("resolve", "greeting", "--session", "s1", api=api)
    assert api.asked[0][2] == {"meta": {"session_id": "s1"}}
    assert result.stdout.splitlines()[0] == "stable -> greeting v1 on role worker"
    assert result.stdout.splitlines()[-1].split() == ["canary", "20", "0.0", "no", "no_workers"]


def test_a_run_is_posted_with_its_input_and_session(api: Api, tmp_path: Path) -> None:
    api.answers["POST", "/api/v1/deployments/greeting/runs"] = (202, RUN)
    (tmp_path / "in.json").write_text('{"name": "Ada"}')
    for given in ('{"name": "Ada"}', f"@{tmp_path / 'in.json'}"):
        result = rolecall("run", "greeting", "--input", given, "--session", "s1", api=api)
        assert result.exit_code == 0
        assert api.asked.pop()[2] == {"input": {"name": "Ada"}, "meta": {"session_id": "s1"}}
    assert result.stdout.startswith("run r1: queued\n")
    assert "follow it: rolecall watch r1" in result.stdout


@pytest.mark.parametrize("given", ["{", "@/no/such/file", "'x'"])
def test_input_that_is_no_json_is_wrong_usage_and_nothing_is_posted(api: Api, given: str) -> None:
    result = rolecall("run", "greeting", "--input", given, api=api)
    assert (result.exit_code, api.asked) == (2, [])
    assert "--input" in result.stderr


@pytest.mark.parametrize(
    ("ended", "code"), [(COMPLETED, 0), (FAILED, 1), (RUN | {"status": "cancelled", "endedAt": "x"}, 1)]
)
def test_a_run_waited_for_tells_its_outcome_by_the_exit_code(api: Api, ended: dict[str, Any], code: int) -> None:
    api.answers["POST", "/api/v1/deployments/greeting/runs"] = (202, RUN)
    api.answers["GET", "/api/v1/runs/r1"] = ended
    result = rolecall("run", "greeting", "--wait", "--json", api=api)
    assert result.exit_code == code
    assert json.loads(result.stdout) == ended
    assert rolecall("run", "greeting", "--wait", api=api).stdout.startswith(f"run r1: {ended['status']}\n")


def test_a_run_that_fails_says_why(api: Api) -> None:
    api.answers["POST", "/api/v1/deployments/greeting/runs"] = (202, RUN)
    api.answers["GET", "/api/v1/runs/r1"] = FAILED
    assert "error PERMANENT: no way" in rolecall("run", "greeting", "--wait", api=api).stdout


def sse() -> bytes:
    return b"".join(f"id: {event['seq']}\ndata: {json.dumps(event)}\n\n".encode() for event in EVENTS)


def test_watch_shows_a_line_an_event_for_people_and_for_programs(api: Api) -> None:
    api.answers["GET", "/api/v1/runs/r1/events"] = sse()
    api.answers["GET", "/api/v1/runs/r1"] = COMPLETED
    result = rolecall("watch", "r1", api=api)
    assert result.exit_code == 0
    first, second, third = result.stdout.splitlines()
    assert first.split() == ["1", "21:40:00.123", "run.queued"]
    assert second.startswith("   2  21:40:00.456  node.completed  greet")
    assert second.endswith("…")
    assert third.split() == ["3", "21:40:01.000", "run.completed"]
    lines = rolecall("watch", "r1", "--json", api=api).stdout.splitlines()
    assert [json.loads(line) for line in lines] == EVENTS


def test_watch_says_that_the_story_begins_anew(api: Api) -> None:
    reset = b'event: reset\ndata: {"run_id": "r1", "epoch": 1}\nid: 1:0\n\n'
    api.answers["GET", "/api/v1/runs/r1/events"] = reset + sse()
    api.answers["GET", "/api/v1/runs/r1"] = COMPLETED
    lines = rolecall("watch", "r1", "--after", "2", api=api).stdout.splitlines()
    assert len(lines) == 1 + len(EVENTS)
    assert "its story begins anew" in lines[0]
    lines = rolecall("watch", "r1", "--after", "2", "--json", api=api).stdout.splitlines()
    assert json.loads(lines[0]) == {"type": "reset", "run_id": "r1", "epoch": 1}


def test_run_with_follow_is_a_run_and_a_watch(api: Api) -> None:
    api.answers["POST", "/api/v1/deployments/greeting/runs"] = (202, RUN)
    api.answers["GET", "/api/v1/runs/r1/events"] = sse()
    api.answers["GET", "/api/v1/runs/r1"] = COMPLETED
    assert len(rolecall("run", "greeting", "--follow", api=api).stdout.splitlines()) == 3


def test_cancel_shows_the_run_or_that_it_had_ended(api: Api) -> None:
    api.answers["POST", "/api/v1/runs/r1/cancel"] = RUN | {"status": "cancelled"}
    assert rolecall("cancel", "r1", api=api).stdout.startswith("run r1: cancelled\n")
    api.answers["POST", "/api/v1/runs/r1/cancel"] = (409, {"code": "run_ended", "detail": "it has ended"})
    assert rolecall("cancel", "r1", api=api).exit_code == 1


WORKER = {
    "instance_id": "i1", "hostname": "host", "role": "gpu-worker", "node": "gpu-worker@host", "pid": 7,
    "state": "unhealthy", "executes": True, "active": 1, "concurrency": 2, "last_seen": "2026-11-30T21:40:00.123Z",
    "checks": {"gpu": {"healthy": False}, "pool": {"healthy": True}},
}  # fmt: skip


def test_workers_roles_and_runs_are_tables_for_people_and_the_answer_for_programs(api: Api) -> None:
    role = {"healthy": True, "eligible": False, "workers": 1, "free": 0, "queued": 3, "oldestQueuedS": 4.2}
    answers = {
        "workers": ("/admin/workers", {"workers": [WORKER], "roles": {}}, "gpu-worker@host gpu-worker unhealthy 1 2 7"),
        "roles": ("/admin/roles", {"roles": {"worker": role}}, "worker yes no no 1 0 3 4 s"),
        "runs": ("/api/v1/runs", {"items": [FAILED], "next": None}, "r1 failed greeting stable worker 1"),
    }
    for command, (path, answer, row) in answers.items():
        api.answers["GET", path] = answer
        result = rolecall(command, api=api)
        assert result.exit_code == 0
        assert " ".join(result.stdout.splitlines()[1].split()).startswith(row)
        assert json.loads(rolecall(command, "--json", api=api).stdout) == answer


def test_runs_passes_its_filters_on(api: Api) -> None:
    api.answers["GET", "/api/v1/runs"] = {"items": [], "next": None}
    rolecall("runs", "--deployment", "greeting", "--status", "failed", "--limit", "5", api=api)
    assert api.asked[0][1] == "/api/v1/runs?deployment=greeting&status=failed&limit=5"


def test_what_is_not_possible_now_has_an_exit_code_of_its_own(api: Api) -> None:
    api.answers["POST", "/api/v1/deployments/greeting/runs"] = (503, {"code": "no_healthy_variant", "detail": "none"})
    result = rolecall("run", "greeting", api=api)
    assert (result.exit_code, result.stderr) == (3, "rolecall: none [no_healthy_variant]\n")


def test_without_url_the_admin_app_of_the_settings_is_called(monkeypatch: pytest.MonkeyPatch, api: Api) -> None:
    api.answers["GET", "/admin/workers"] = {"workers": [], "roles": {}}
    monkeypatch.setenv("ADMIN_PORT", str(api.server_port))
    assert rolecall("workers").exit_code == 0
    monkeypatch.setenv("ADMIN_PORT", "no port")
    result = rolecall("workers")
    assert result.exit_code == 1
    assert "ADMIN_PORT='no port'" in result.stderr


# --- the processes on this machine -------------------------------------------------------------------------------


def test_ps_shows_the_processes_and_says_when_there_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    result = rolecall("ps")
    assert result.exit_code == 1
    assert f"no Rolecall runs in {tmp_path}" in result.stderr
    control = Control(tmp_path)
    with control.own("-"):
        control.publish([Status("gpu-worker", State.WAITING, None, 1.0, 3)])
        assert rolecall("ps").stdout.splitlines()[1].split()[:3] == ["gpu-worker", "waiting", "-"]
        row = {"name": "gpu-worker", "state": "waiting", "pid": None, "restarts": 3}
        assert json.loads(rolecall("ps", "--json").stdout) == [row]


def test_server_becomes_the_embedded_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: became.append(command))
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("REDIS_PORT", "6999")
    assert rolecall("server", "redis").exit_code == 0
    assert became[0][became[0].index("--port") + 1] == "6999"
    assert (tmp_path / "data" / "redis").is_dir()
    assert rolecall("server", "mongo").exit_code == 0
    assert Path(became[1][0]).parent == Path(sys.executable).parent
    assert rolecall("server", "kafka").exit_code == 2


def test_a_data_folder_that_cannot_be_made_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "file"))
    result = rolecall("server", "redis")
    assert result.exit_code == 1
    assert f"DATA_DIR={tmp_path / 'file'}" in result.stderr

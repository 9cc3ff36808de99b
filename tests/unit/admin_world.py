"""A whole Rolecall in memory behind Flask's test client, and the moves that a test makes in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from admin.app import create_app
from admin.process import KEY, Process
from admin.settings import admin_settings
from app.errors import ServerUnavailable
from app.models.event import NewEvent
from app.models.heartbeat import Heartbeat
from app.models.run import RunStatus, WorkerRef
from app.ports import Outcome
from app.runs.recovery import make_anew
from app.wiring import Services, build_memory

FLOW = {
    "flowdsl": "1.0",
    "info": {"title": "Greeting", "version": "1.0.0"},
    "flows": {
        "greet": {
            "entrypoints": ["start"],
            "nodes": {
                "start": {"operationId": "start", "kind": "source", "x-action-ref": "core/source"},
                "say": {
                    "operationId": "say",
                    "kind": "transform",
                    "x-action-ref": "core/template-render",
                    "settings": {"template": "Hello {{.name}}"},
                },
            },
            "edges": [{"from": "start", "to": "say", "delivery": {"mode": "direct"}}],
        }
    },
}

CANARY = {
    "variants": [
        {"label": "stable", "flowId": "greet", "weight": 90, "targetRoles": ["worker"]},
        {"label": "canary", "flowId": "greet", "weight": 10, "targetRoles": ["gpu-worker"]},
    ]
}


@dataclass
class World:
    """The app, its client, its services."""

    app: Flask
    client: FlaskClient
    services: Services

    def beat(self, role: str = "worker", instance_id: str | None = None, **changes: Any) -> Heartbeat:
        """Let an instance of a role announce itself."""
        fields: dict[str, Any] = {
            "instance_id": instance_id or f"{role}-1",
            "hostname": "host",
            "role": role,
            "version": "0.1.0",
            "started_at": "2026-11-30T21:40:00.000Z",
            "healthy": True,
            "pid": 1,
            "node": f"{role}@host",
            "executes": role not in ("dispatcher", "admin-api"),
            "pool": "prefork",
            "concurrency": 2,
            "nodes": tuple(sorted(self.services.handlers.refs)),
        }
        heartbeat = Heartbeat.model_validate(fields | changes)
        self.services.register.beat(heartbeat)
        return heartbeat

    def import_flow(self, document: dict[str, Any] = FLOW, *, publish: bool = True) -> dict[str, Any]:
        answer = self.client.post(f"/api/v1/flows/import?publish={str(publish).lower()}", json=document)
        assert answer.status_code in (200, 201), answer.text
        return answer.json["flows"][0]

    def deploy(self, ident: str = "hello", body: dict[str, Any] = CANARY) -> dict[str, Any]:
        answer = self.client.put(f"/api/v1/deployments/{ident}", json=body)
        assert answer.status_code in (200, 201), answer.text
        return answer.json

    def ready(self) -> None:
        """Workers of both roles, a dispatcher, a flow and a deployment of it."""
        for role in ("worker", "gpu-worker", "dispatcher", "admin-api"):
            self.beat(role)
        self.import_flow()
        self.deploy()

    def start(self, ident: str = "hello", **body: Any) -> dict[str, Any]:
        answer = self.client.post(f"/api/v1/deployments/{ident}/runs", json=body)
        assert answer.status_code == 202, answer.text
        return answer.json

    def claim(self, run: dict[str, Any]) -> None:
        role = run["targetRole"]
        worker = WorkerRef(f"{role}-1", f"{role}@host", role)
        claimed = self.services.live.claim(run["runId"], worker=worker, token="token", ttl_ms=30_000)
        assert claimed.refusal is None

    def append(self, run: dict[str, Any], batch: int, *events: NewEvent) -> None:
        assert self.services.live.append(run["runId"], "token", batch, events).ok

    def finish(self, run: dict[str, Any], output: Any = None, batch: int = 99) -> None:
        outcome = Outcome(RunStatus.COMPLETED, output=output)
        assert self.services.live.finish(run["runId"], "token", batch, (), outcome).ok

    def finished(self, **body: Any) -> dict[str, Any]:
        """Return a run that was started and has completed."""
        run = self.start(**body)
        self.claim(run)
        self.finish(run, {"content": "Hello"})
        return run

    def lose(self, run: dict[str, Any]) -> None:
        """Lose the live state of an open run, and make it anew as a dispatcher's housekeeping does."""
        known = self.services.runs.get(run["runId"])
        self.services.live.drop(known.run_id)
        assert make_anew(self.services.store, self.services.live, known)

    def mirror(self) -> None:
        """Bring the ledger up to the live state, as a dispatcher's housekeeping does."""
        for run in self.services.live.changed(1000):
            self.services.store.mirror_run(run)
            self.services.store.append_events(run.run_id, self.services.live.events(run.run_id, limit=10_000))
            self.services.live.mirrored(run.run_id, run.rev)

    def take_away(self, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make every call of a server's ports fail as if it were out of reach."""
        services = self.services
        parts: dict[str, list[object]] = {
            "redis": [services.live, services.register],
            "mongo": [services.store],
            "broker": [services.dispatcher],
        }
        for part in parts[server]:
            for name in (name for name in dir(part) if not name.startswith("_") and name != "close"):
                if callable(getattr(part, name)):
                    monkeypatch.setattr(part, name, _refuse(server))


def _refuse(server: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ServerUnavailable(server, "no answer within 2 s")

    return refuse


def sse(text: str) -> Iterator[dict[str, Any]]:
    """Read a stream: each event as ``{"id", "event", "data"}``, comments and lone fields left out.

    An id is a number, or a text like ``1:7`` where the live state had been lost.
    """
    for block in text.split("\n\n"):
        fields = dict(line.split(":", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if "data" in fields:
            ident = fields["id"]
            yield {
                "id": int(ident) if ident.isdigit() else ident,
                "event": fields["event"],
                "data": json.loads(fields["data"]),
            }


@cache
def _shared_app() -> Flask:
    """Return one app for all tests, so that its templates are compiled once; each test gives it other services."""
    return create_app(lambda: pytest.fail("a test must bring its own services"))


@pytest.fixture
def world() -> Iterator[World]:
    # Each look at this clock is two seconds later, so that nothing is answered from a second's cache.
    ticks = count(step=2)
    services = build_memory(admin_settings({}), monotonic=lambda: float(next(ticks)))
    app = _shared_app()
    app.extensions[KEY] = Process(lambda: services)
    with app.test_client() as client:
        yield World(app, client, services)
    services.close()

"""The world of one benchmark run: servers and processes, started when a measure first asks, all ended at the end."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from itertools import count, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import redis
from celery import Celery

from app import wiring
from app.config import Settings, load_settings
from app.models.run import Run
from app.stack.servers import mongo_command, valkey_command
from app.wiring import Services
from benchmarks import peer
from benchmarks.processes import free_port, listens, running, wait_until

ROLE = "worker"
ADMIN_ROLE = "admin-api"
CONCURRENCY = 2
_NUMBERS = count()


class World:
    """Loopback only; everything lies in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> World:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    # --- servers -------------------------------------------------------------------------------------------------

    @cached_property
    def redis_url(self) -> str:
        """A Valkey of its own."""
        port = free_port()
        self._server("valkey", valkey_command(port, self._data("valkey")), port)
        return f"redis://127.0.0.1:{port}/0"

    @cached_property
    def redis(self) -> redis.Redis:
        client: redis.Redis = self._stack.enter_context(redis.Redis.from_url(self.redis_url))
        return client

    @cached_property
    def mongo_url(self) -> str:
        """A MongoDB-protocol server of its own."""
        port = free_port()
        self._server("mongo", mongo_command(port, self._data("mongo")), port)
        return f"mongodb://127.0.0.1:{port}/rolecall"

    @cached_property
    def environment(self) -> dict[str, str]:
        """The settings of our processes: the defaults, but for addresses and the measured flows' handlers."""
        return {
            "REDIS_URL": self.redis_url,
            "BROKER_URL": self.redis_url,
            "MONGO_URL": self.mongo_url,
            "NODE_MODULES": "benchmarks.nodes",
            "DATA_DIR": str(self._folder),
            "TMPDIR": str(self._folder),
        }

    @cached_property
    def settings(self) -> Settings:
        return load_settings(self.environment, service_role=ADMIN_ROLE)

    @cached_property
    def services(self) -> Services:
        """Services in this process, wired as those of an admin process."""
        services = wiring.build(self.settings)
        self._stack.callback(services.close)
        services.store.prepare()
        return services

    # --- workers and web processes -------------------------------------------------------------------------------

    def worker(self) -> int:
        """Start our worker unless it runs, wait until runs can go to it, and return its process id."""
        pid = self._worker
        wait_until(self._eligible, "our worker is registered")
        return pid

    def peer_worker(self) -> int:
        """Start the peer's worker unless it runs; return its process id."""
        return self._peer_worker

    @cached_property
    def _worker(self) -> int:
        return self._process(
            "worker", _worker_command("app"), self._eligible, self.environment | {"SERVICE_ROLE": ROLE}
        )

    @cached_property
    def _peer_worker(self) -> int:
        command = _worker_command("benchmarks.peer", "-Q", peer.QUEUE, "-n", "peer@%h")
        with peer.make(self.redis_url) as celery:
            env = {"CELERY_BROKER_URL": self.redis_url}
            return self._process("peer", command, lambda: bool(celery.control.ping(timeout=0.5)), env)

    @cached_property
    def admin(self) -> int:
        """The port of our admin app, started as an operator starts it."""
        port = free_port()
        settings = self.environment | {"SERVICE_ROLE": ADMIN_ROLE, "ADMIN_PORT": str(port)}
        command = [sys.executable, "-m", "gunicorn", "-c", "admin/gunicorn.py", "admin.wsgi:app"]
        self._process("admin", command, lambda: listens(port), settings)
        return port

    @cached_property
    def peer_web(self) -> int:
        """The port of the peer's web process, under the same worker class."""
        return self._peer_web("peer-web", "benchmarks.peer_web")

    @cached_property
    def stock_web(self) -> int:
        """The port of the peer that is as it comes out of the box; its worker is started with it."""
        command = _worker_command("benchmarks.stock_web:celery", "-n", "stock@%h")
        with Celery(broker=self.redis_url, set_as_current=False) as celery:
            alive = lambda: bool(celery.control.ping(["stock@" + socket.gethostname()], timeout=0.5))  # noqa: E731
            self._process("stock", command, alive, {"CELERY_BROKER_URL": self.redis_url})
        return self._peer_web("stock-web", "benchmarks.stock_web")

    # --- what is measured ----------------------------------------------------------------------------------------

    def deploy(self, *nodes: dict[str, Any]) -> str:
        """Publish a flow of nodes that follow one another and deploy it for our worker; return the deployment's id."""
        name = f"bench{next(_NUMBERS)}"
        result = self.services.catalog.import_document(document(name, *nodes), flow=name, publish=True)
        variant = {"label": "only", "flowId": result.flows[0].flow_id, "weight": 1, "targetRoles": [ROLE]}
        self.services.catalog.put_deployment(name, {"variants": [variant]})
        return name

    def queue_like(self, run: Run) -> Run:
        """Queue another run like ``run`` in the live state alone, without ledger and message."""
        fresh = run.with_(run_id=f"{run.run_id}-{next(_NUMBERS)}")
        self.services.live.create(fresh)
        return fresh

    def ended(self) -> int:
        """Return how many runs have ended; one quick command, so that it may be asked often."""
        return int(self.redis.zcard(f"{self.settings.key_prefix}ended"))

    def _peer_web(self, name: str, module: str) -> int:
        port = free_port()
        command = [
            *(sys.executable, "-m", "gunicorn", "-k", "gevent", "--worker-connections", "2000"),
            *("--keep-alive", "5", "--graceful-timeout", "3", "--no-control-socket"),
            *("-b", f"127.0.0.1:{port}", f"{module}:create({self.redis_url!r})"),
        ]
        self._process(name, command, lambda: listens(port), {})
        return port

    # --- inside --------------------------------------------------------------------------------------------------

    def _data(self, name: str) -> Path:
        data = self._folder / name
        data.mkdir()
        return data

    def _server(self, name: str, command: list[str], port: int) -> None:
        self._process(name, command, lambda: listens(port), {})

    def _process(self, name: str, command: list[str], ready: Callable[[], bool], env: dict[str, str]) -> int:
        return self._stack.enter_context(running(name, command, ready, folder=self._folder, env=env)).pid

    def _eligible(self) -> bool:
        snapshot = self.services.register.snapshot()
        summary = snapshot.roles.get(ROLE)
        return snapshot.known and summary is not None and summary.slots == CONCURRENCY


def node(ref: str, **settings: Any) -> dict[str, Any]:
    return {"operationId": ref, "kind": "transform", "x-action-ref": ref, "settings": settings}


def document(name: str, *nodes: dict[str, Any]) -> bytes:
    """Return a FlowDSL document with one flow whose nodes follow one another."""
    named = {f"n{number}": each for number, each in enumerate(nodes)}
    edges = [{"from": a, "to": b, "delivery": {"mode": "direct"}} for a, b in pairwise(named)]
    flow = {"entrypoints": ["n0"], "nodes": named, "edges": edges}
    return json.dumps({"flowdsl": "1.0.0", "info": {"title": name, "version": "1"}, "flows": {name: flow}}).encode()


def _worker_command(app: str, *options: str) -> list[str]:
    return [
        *(sys.executable, "-m", "celery", "-A", app, "worker", "--pool", "prefork"),
        *("--concurrency", str(CONCURRENCY), "--without-mingle", "--without-gossip", *options),
    ]

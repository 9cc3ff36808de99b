"""The admin app as it is shipped: gunicorn on gevent, with a real Valkey and a real MongoDB-protocol server."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event as Flag
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
import redis

from admin.settings import admin_settings
from admin.sse import KEEPALIVE_S
from app.models.event import RESET, Event, NewEvent
from app.stack.servers import valkey_command
from app.wiring import build
from tests.processes import ProcessContainer
from tests.servers import free_port, listens, running, wait_until
from tests.unit.admin_world import FLOW, World, sse

pytestmark = pytest.mark.integration

GUNICORN = [sys.executable, "-m", "gunicorn", "-c", "admin/gunicorn.py", "admin.wsgi:app"]
LONG = {"LEASE_TTL_S": "300", "HEARTBEAT_TTL_S": "300"}
"""The workers of these tests announce themselves once."""


class Admin:
    """A gunicorn with the admin app, and the moves of a worker beside it."""

    def __init__(self, environment: dict[str, str], folder: Path, *options: str) -> None:
        port = free_port()
        self.environment = {**environment, "ADMIN_PORT": str(port), "DATA_DIR": str(folder)}
        self.process = ProcessContainer(f"admin-{port}", [*GUNICORN, *options], self.environment, folder, port=port)
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=10)
        self.services = build(admin_settings(self.environment))
        self.world = World(app=None, client=None, services=self.services)  # type: ignore[arg-type]

    def open(self) -> None:
        """Wait until it answers, then give it a worker, a flow and a deployment."""
        self.process.ready()
        wait_until(lambda: self.http.get("/healthz").status_code == 200, seconds=10, what="the admin app answers")
        self.world.beat("worker")
        self.http.post("/api/v1/flows/import?publish=true", json=FLOW).raise_for_status()
        variant = {"label": "only", "flowId": "greet", "weight": 1, "targetRoles": ["worker"]}
        found = self.http.get("/api/v1/deployments/hello")
        if found.status_code == 404:
            self.http.put("/api/v1/deployments/hello", json={"variants": [variant]}).raise_for_status()
        wait_until(self._resolves, seconds=10, what="the worker is seen")

    def _resolves(self) -> bool:
        return self.http.post("/api/v1/deployments/hello/resolve", json={}).status_code == 200

    def start(self) -> dict[str, Any]:
        answer = self.http.post("/api/v1/deployments/hello/runs", json={"input": {"name": "Ada"}})
        assert answer.status_code == 202, answer.text
        run: dict[str, Any] = answer.json()
        self.world.claim(run)
        return run

    def read(self, run: dict[str, Any], after: int | None = None, *, opened: Flag | None = None) -> list[int | str]:
        """Read a stream to its end and return the ids, which must be those of the data (a reset's is its name)."""
        headers = {} if after is None else {"Last-Event-ID": str(after)}
        text = ""
        with self.http.stream("GET", run["events"], headers=headers, timeout=30) as answer:
            assert answer.status_code == 200
            for chunk in answer.iter_text():
                text += chunk
                if opened is not None and "data:" in text:
                    opened.set()
        ids: list[int | str] = []
        for event in sse(text):
            if event["event"] != RESET:
                assert str(event["id"]) == str(Event.from_wire(event["data"]).place)
            ids.append(event["id"] if event["event"] != RESET else RESET)
        return ids

    def close(self) -> None:
        self.http.close()
        self.services.close()
        self.process.teardown()


@pytest.fixture(scope="module")
def environment(valkey: str, mongo_server: str) -> dict[str, str]:
    name = f"t{uuid.uuid4().hex[:12]}"
    return {"REDIS_URL": valkey, "MONGO_URL": f"{mongo_server}/{name}", "KEY_PREFIX": f"{name}:", **LONG}


@pytest.fixture(scope="module")
def admin(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    admin = Admin(environment, tmp_path_factory.mktemp("admin"))
    try:
        admin.open()
        yield admin
    finally:
        admin.close()


def _log(n: int) -> list[NewEvent]:
    return [NewEvent("log", data={"level": "info", "message": f"{i}"}) for i in range(n)]


def test_a_stream_is_one_to_n_however_and_whenever_it_is_joined(admin: Admin) -> None:
    run = admin.start()
    with ThreadPoolExecutor(3) as pool:
        early, mid = Flag(), Flag()
        from_start = pool.submit(admin.read, run, opened=early)
        assert early.wait(10)
        admin.world.append(run, 1, *_log(100))
        mid_run = pool.submit(admin.read, run, opened=mid)
        assert mid.wait(10)
        for batch in range(2, 12):
            admin.world.append(run, batch, *_log(20))
        again = pool.submit(admin.read, run, 150)
        admin.world.finish(run)
        whole = list(range(1, 304))

        assert from_start.result(30) == whole
        assert mid_run.result(30) == whole
        assert again.result(30) == whole[150:]
    assert admin.read(run) == whole
    assert admin.read(run, 300) == [301, 302, 303]
    assert admin.http.get(run["events"], headers={"Last-Event-ID": "303"}).status_code == 204
    assert admin.http.get(run["events"] + "?after=303").status_code == 204
    pages = admin.http.get(run["events"] + "?limit=300", headers={"Accept": "application/json"}).json()
    assert ([event["seq"] for event in pages["events"]], pages["next"]) == (whole[:300], 300)


def test_the_first_event_comes_at_once_and_the_stream_is_not_held_back(admin: Admin) -> None:
    run = admin.start()

    began = time.monotonic()
    with admin.http.stream("GET", run["events"]) as answer:
        first = next(answer.iter_text())
        took = time.monotonic() - began

    assert first
    assert took < 1
    assert answer.headers["X-Accel-Buffering"] == "no"
    assert answer.headers["Cache-Control"] == "no-cache"
    admin.world.finish(run)


def test_streams_of_a_run_that_was_lost_are_told_so_and_get_its_new_story(admin: Admin) -> None:
    run = admin.start()
    anew: list[int | str] = ["1:1", "1:2", "1:3", "1:4"]
    with ThreadPoolExecutor(2) as pool:
        flags = Flag(), Flag()
        connected = [pool.submit(admin.read, run, opened=flag) for flag in flags]
        assert all(flag.wait(10) for flag in flags)

        admin.world.lose(run)
        admin.world.claim(run)
        admin.world.append(run, 1, *_log(1))
        admin.world.finish(run)

        assert [stream.result(30) for stream in connected] == [[1, 2, RESET, *anew]] * 2
    assert admin.read(run) == anew
    assert admin.read(run, 2) == [RESET, *anew]
    assert admin.http.get(run["events"], headers={"Last-Event-ID": "1:4"}).status_code == 204


def test_pages_answer_while_eight_tabs_hold_streams(admin: Admin) -> None:
    run = admin.start()
    with ThreadPoolExecutor(8) as pool:
        flags = [Flag() for _ in range(8)]
        tabs = [pool.submit(admin.read, run, opened=flag) for flag in flags]
        assert all(flag.wait(10) for flag in flags)

        for path in ("/healthz", "/", "/workers", f"/runs/{run['runId']}"):
            assert admin.http.get(path, timeout=5).status_code == 200
        admin.world.append(run, 1, *_log(5))
        admin.world.finish(run)

        assert all(tab.result(20) == list(range(1, 9)) for tab in tabs)


def test_a_reader_who_does_not_read_holds_up_nobody_and_reads_on_later(admin: Admin) -> None:
    run = admin.start()
    address = urlsplit(admin.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as stalled:
        stalled.sendall(f"GET {run['events']} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert stalled.recv(16)
        big = "x" * 400_000
        for batch in range(1, 41):
            admin.world.append(run, batch, NewEvent("log", data={"message": big}))
        admin.world.finish(run)
        grown = sum(child.memory_info().rss for child in psutil.Process(admin.process.pid).children())

        assert admin.read(run) == list(range(1, 44))
        assert grown < 400_000_000
        rest = b"".join(iter(lambda: stalled.recv(1 << 20), b""))
    assert rest.count(b"\nid:") == 43


def test_the_process_announces_itself_and_says_goodbye(environment: dict[str, str], tmp_path: Path) -> None:
    admin = Admin({**environment, "KEY_PREFIX": f"t{uuid.uuid4().hex[:12]}:"}, tmp_path)
    try:
        admin.open()
        wait_until(lambda: "admin-api" in admin.http.get("/admin/roles").json()["roles"], seconds=10, what="it is seen")
        worker = next(
            each for each in admin.http.get("/admin/workers").json()["workers"] if each["role"] == "admin-api"
        )
        assert (worker["healthy"], worker["executes"]) == (True, False)
        run = admin.start()
        with ThreadPoolExecutor(20) as pool, ExitStack() as stack:
            flags = [Flag() for _ in range(20)]
            tabs = [pool.submit(admin.read, run, opened=flag) for flag in flags]
            stack.callback(admin.process.stop)
            assert all(flag.wait(10) for flag in flags)

            began = time.monotonic()
            admin.process.terminate()
            code = admin.process.wait(10)

            # gunicorn's grace of 3 s, and the end of two interpreters; it waits for no stream, which would be for ever.
            assert time.monotonic() - began < 8
            assert code == 0
            assert "Traceback" not in admin.process.logs()
            assert all(tab.result(5) == [1, 2] for tab in tabs)
        assert [each.heartbeat.role for each in admin.services.register.instances()] == ["worker"]
    finally:
        admin.close()


def test_a_stream_outlives_gunicorn_s_timeout_and_a_restart_of_redis(mongo_server: str, tmp_path: Path) -> None:
    port = free_port()
    name = f"t{uuid.uuid4().hex[:12]}"
    environment = {"REDIS_URL": f"redis://127.0.0.1:{port}/0", "MONGO_URL": f"{mongo_server}/{name}", **LONG}
    command = valkey_command(port, tmp_path)
    admin = None
    try:
        with running(command, port, tmp_path / "valkey.log"):
            admin = Admin(environment, tmp_path, "--timeout", "1")
            admin.open()
            run = admin.start()
            reader = ThreadPoolExecutor(1)
            opened = Flag()
            stream = reader.submit(admin.read, run, opened=opened)
            assert opened.wait(10)
        wait_until(lambda: not listens(port), seconds=5, what="redis is gone")
        page = admin.http.get("/", timeout=6)
        assert page.status_code == 200
        assert "redis does not answer" in page.text.lower()
        assert admin.http.post("/api/v1/deployments/hello/runs", json={}, timeout=6).status_code == 503
        time.sleep(3.2)  # three times the timeout of gunicorn
        with running(command, port, tmp_path / "valkey.log"):
            admin.world.append(run, 1, *_log(3))
            admin.world.finish(run)

            assert stream.result(30) == list(range(1, 7))
            reader.shutdown()
            admin.process.terminate()
            admin.process.wait(10)
    finally:
        if admin is not None:
            admin.close()


def test_a_worker_class_that_cannot_hold_streams_is_refused_with_the_reason(environment: dict[str, str]) -> None:
    settings = {**environment, "ADMIN_PORT": str(free_port())}
    ended = subprocess.run(
        [*GUNICORN, "-k", "sync"], env={**settings, "PATH": ""}, capture_output=True, text=True, timeout=30, check=False
    )

    assert ended.returncode != 0
    assert "worker class 'sync' cannot serve" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_wrong_setting_is_told_without_a_traceback(environment: dict[str, str]) -> None:
    ended = subprocess.run(
        GUNICORN, env={**environment, "ADMIN_PORT": "none"}, capture_output=True, text=True, timeout=30, check=False
    )

    assert ended.returncode != 0
    assert "ADMIN_PORT" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.soak
def test_readers_who_left_are_noticed_within_two_keepalives(admin: Admin, valkey: str) -> None:
    run = admin.start()
    address = urlsplit(admin.url)
    gone = [socket.create_connection((address.hostname, address.port)) for _ in range(20)]
    with redis.Redis.from_url(valkey) as server:

        def subscriptions() -> int:
            return sum(int(client["sub"]) for client in server.client_list(_type="pubsub"))

        for one in gone:
            one.sendall(f"GET {run['events']} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert one.recv(64)
        wait_until(lambda: subscriptions() == 1, seconds=5, what="the run is watched")
        for one in gone:
            one.close()

        wait_until(lambda: subscriptions() == 0, seconds=2 * KEEPALIVE_S + 1, what="the gone are noticed", step=0.5)
    admin.world.finish(run)

"""What ``make up`` starts, seen from outside: all processes, examples, one of them killed, two of it, its end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from app.client import Client, Refused, TryLater
from app.stack.examples import load_examples
from tests.servers import wait_until
from tests.stack import Up

pytestmark = pytest.mark.e2e

PROCESSES = ["redis", "mongo", "admin", "dispatcher", "worker", "gpu-worker"]
START_S, STOP_S = 90.0, 10.0
QUICKER = {"HEARTBEAT_INTERVAL_S": "2"}
"""What starts is seen sooner. The times after which somebody counts as gone stay: a machine that is busy with starting
everything at once may hold a heartbeat back for seconds, which must not look like a gap."""


@pytest.fixture(scope="module")
def up(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    it = Up(repository, tmp_path_factory.mktemp("data"), **QUICKER)
    try:
        it.until("Ctrl-C stops everything", seconds=START_S)
        yield it
    finally:
        if it.process.poll() is None:
            it.process.terminate()
            it.process.wait(2 * STOP_S)


@pytest.fixture
def client(up: Up) -> Iterator[Client]:
    with Client(f"http://127.0.0.1:{up.environ['ADMIN_PORT']}") as client:
        yield client


def processes(up: Up) -> dict[str, list[str]]:
    """What ``rolecall ps`` shows: state and pid by name."""
    shown = up.rolecall("ps")
    assert shown.returncode == 0, shown.stderr
    return {row.split()[0]: row.split()[1:3] for row in shown.stdout.splitlines()[1:]}


def is_ready(client: Client) -> bool:
    try:
        return client.get("/readyz")["ready"] is True
    except (Refused, TryLater):
        return False


def test_every_process_becomes_ready_and_the_examples_are_there(up: Up, client: Client) -> None:
    assert set(PROCESSES) == {line.split()[0] for line in up.said.splitlines() if " pid " in line}
    assert "deployments made" in up.said
    assert f"Rolecall is up: {client.url}" in up.said
    deployments = {item["id"] for item in client.get("/api/v1/deployments")["items"]}
    assert {"greeting", "gpu-greeting", "slow-count"} <= deployments
    # A busy machine may make one check of one server late; it must not stay so.
    wait_until(lambda: is_ready(client), seconds=20, what="the admin app says that all is ready")


def test_loading_the_examples_again_leaves_the_deployments_as_they_are(client: Client, repository: Path) -> None:
    """As a second start with the same data does."""
    loaded = load_examples(client, repository / "examples")
    assert loaded.made == 0
    assert loaded.there == len(list((repository / "examples" / "deployments").glob("*.json")))


def test_the_first_commands_that_it_prints_work(up: Up) -> None:
    bash = shutil.which("bash")
    if bash is None or shutil.which("curl") is None:
        pytest.skip("bash or curl is not installed")
    begin = up.said.index("  curl -N ")
    commands = up.said[begin : up.said.index("\n\n", begin)].replace('"seconds": 5', '"seconds": 0.1')
    followed = subprocess.run(
        [bash, "-c", commands],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "no_proxy": "*"},
    )
    types = [line.partition(":")[2].strip() for line in followed.stdout.splitlines() if line.startswith("event:")]
    assert types[:2] == ["run.queued", "run.started"], followed.stdout + followed.stderr
    assert types[-1] == "run.completed"


def test_a_run_for_the_gpu_role_is_executed_by_that_worker(up: Up, client: Client) -> None:
    [worker] = [one for one in client.get("/admin/workers")["workers"] if one["role"] == "gpu-worker"]
    followed = up.rolecall("run", "gpu-greeting", "--input", '{"name": "Ada"}', "--follow", "--json")
    assert followed.returncode == 0, followed.stderr
    assert f'"instance_id":"{worker["instance_id"]}"' in followed.stdout
    assert "Hello Ada" in followed.stdout


def test_a_killed_worker_comes_back_and_the_others_live_on(up: Up) -> None:
    before = processes(up)
    os.kill(int(before["gpu-worker"][1]), signal.SIGKILL)
    wait_until(
        lambda: processes(up)["gpu-worker"][0] == "running" and processes(up)["gpu-worker"] != before["gpu-worker"],
        seconds=30,
        what="the worker runs again",
    )
    after = processes(up)
    assert {name: row for name, row in after.items() if name != "gpu-worker"} == {
        name: row for name, row in before.items() if name != "gpu-worker"
    }
    assert "To keep it down: " in up.said


def test_a_stopped_worker_says_goodbye_and_a_started_one_is_found(up: Up, client: Client) -> None:
    assert up.rolecall("stop", "worker").returncode == 0
    assert processes(up)["worker"] == ["stopped", "-"]
    assert "worker" not in {one["role"] for one in client.get("/admin/workers")["workers"]}
    with pytest.raises(TryLater, match="no variants with healthy target roles"):
        client.post("/api/v1/deployments/retry-loop/resolve", {})
    assert up.rolecall("start", "worker").returncode == 0

    def resolves() -> bool:
        try:
            return bool(client.post("/api/v1/deployments/retry-loop/resolve", {})["targetRole"] == "worker")
        except (Refused, TryLater):
            return False

    wait_until(resolves, seconds=30, what="runs for the role find the worker again")


def test_run_twice_it_says_what_is_in_the_way(up: Up, tmp_path: Path) -> None:
    second = up.rolecall("up")
    assert second.returncode == 1
    assert f"pid {up.process.pid} owns" in second.stderr
    third = Up(up.folder, tmp_path, **{name: up.environ[name] for name in ("ADMIN_PORT", "REDIS_PORT", "MONGO_PORT")})
    assert third.process.wait(30) == 1
    assert f"port {up.environ['REDIS_PORT']} is in use by pid {processes(up)['redis'][1]} (valkey-server)" in third.said


def test_ctrl_c_stops_everything_in_time_and_leaves_no_process(up: Up) -> None:
    descendants = psutil.Process(up.process.pid).children(recursive=True)
    assert len(descendants) > len(PROCESSES)
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(STOP_S + 5) == 0
    assert [one for one in descendants if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []
    took = float(up.said.rpartition("Stopped in ")[2].split()[0])
    assert took < STOP_S

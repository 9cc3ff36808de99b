"""One real run, end to end: real workers by role, a real broker, a real store."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import celery
import pytest
from pytest_celery import CeleryTestSetup

from app.celery import role_queue
from app.models.run import RunStatus
from app.ports import Nudge
from app.wiring import Services
from tests.integration.flows import counting, deploy, ended, waiting
from tests.servers import wait_until

pytestmark = pytest.mark.integration

ROLES = ["worker", "gpu-worker", "dispatcher"]


def test_a_run_goes_to_the_worker_of_its_role_and_its_events_tell_the_story(services: Services) -> None:
    deploy(services, "story", counting("story"), only=(1, ["gpu-worker"]))
    started = services.runs.start("story", {"input": {"n": 1}, "meta": {"session_id": "s"}})
    assert (started.status, started.target_role) == (RunStatus.QUEUED, "gpu-worker")
    run = ended(services, started.run_id)
    assert run.status is RunStatus.COMPLETED, run.error
    assert run.output == {"n": 1, "count": 1}
    gpu = next(i.heartbeat for i in services.register.instances() if i.heartbeat.role == "gpu-worker")
    assert run.worker is not None
    assert (run.worker.instance_id, run.worker.node) == (gpu.instance_id, gpu.node)
    events = services.runs.events(run.run_id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.type for event in events] == [
        "run.queued",
        "run.started",
        "node.started",
        "node.completed",
        "node.started",
        "log",
        "node.completed",
        "run.completed",
    ]
    assert events[1].data == {"worker": run.worker.to_wire()}
    assert services.store.counter("story") == 1


def test_a_doubled_nudge_and_one_that_went_astray_run_nothing(
    services: Services, celery_setup: CeleryTestSetup
) -> None:
    deploy(services, "nudges", counting("nudges"), only=(1, ["worker"]))
    deploy(services, "busy", waiting(2.0), only=(1, ["worker"]))
    worker, gpu, _ = celery_setup.worker_cluster
    run = services.runs.start("nudges", {})
    ended(services, run.run_id)
    services.dispatcher.nudge(Nudge.of(run))
    worker.wait_for_log(f"run {run.run_id} attempt 1: ended")
    kwargs = {"run_id": run.run_id, "attempt": 1}
    celery_setup.app.send_task("flow.run", kwargs=kwargs, queue=role_queue("gpu-worker"), ignore_result=True)
    gpu.wait_for_log(f"run {run.run_id} attempt 1: ended")
    # A run that is queued for one role is not run by another that was told of it.
    sleeping = [services.runs.start("busy", {}) for _ in range(2)]
    queued = services.runs.start("nudges", {})
    kwargs = {"run_id": queued.run_id, "attempt": 1}
    celery_setup.app.send_task("flow.run", kwargs=kwargs, queue=role_queue("gpu-worker"), ignore_result=True)
    gpu.wait_for_log(f"run {queued.run_id} attempt 1: other_role")
    for each in (*sleeping, queued):
        ended(services, each.run_id)
    assert services.store.counter("nudges") == 2


def test_another_app_starts_a_run_with_nothing_but_celery(services: Services, environment: dict[str, str]) -> None:
    deploy(services, "stranger", counting("stranger"), only=(1, ["worker"]))
    url = environment["REDIS_URL"]
    stranger = celery.Celery("stranger", broker=url, backend=url, set_as_current=False)
    sent = stranger.send_task(
        "flow.dispatch", kwargs={"deployment_id": "stranger", "input": {"x": 1}}, queue="dispatcher"
    )
    answer = sent.get(timeout=15)
    assert answer["status"] == "queued"
    assert answer["events"] == f"/api/v1/runs/{answer['runId']}/events"
    assert ended(services, answer["runId"]).output == {"x": 1, "count": 1}
    again = stranger.send_task(
        "flow.dispatch", kwargs={"deployment_id": "stranger", "input": {"x": 1}}, queue="dispatcher", task_id=sent.id
    )
    assert again.get(timeout=15)["runId"] == answer["runId"]
    refused = stranger.send_task("flow.dispatch", kwargs={"deployment_id": "nothing"}, queue="dispatcher")
    with pytest.raises(Exception, match="deployment_not_found"):
        refused.get(timeout=15)

    def recorded() -> bool:
        run = services.store.get_run(answer["runId"])
        return run is not None and run.status is RunStatus.COMPLETED

    # Housekeeping brings the events of the run and then its end into the ledger.
    wait_until(recorded, seconds=5, what="the end of the run is in the ledger")
    assert services.store.events(answer["runId"]) == services.live.events(answer["runId"])
    stranger.close()


def test_many_runs_by_many_clients_all_end_once(services: Services) -> None:
    deploy(services, "many", counting("many"), a=(1, ["worker"]), b=(1, ["gpu-worker"]))

    def client(number: int) -> list[str]:
        return [services.runs.start("many", {"input": {"n": n}}).run_id for n in range(10)]

    with ThreadPoolExecutor(8) as pool:
        run_ids = [run_id for ids in pool.map(client, range(8)) for run_id in ids]
    wait_until(lambda: all(services.runs.get(r).ended for r in run_ids), seconds=60, what="all runs have ended")
    for run_id in run_ids:
        types = [event.type for event in services.runs.events(run_id)]
        assert [t for t in types if t in ("run.completed", "run.failed", "run.cancelled")] == ["run.completed"]
    assert services.store.counter("many") == len(run_ids) == 80


def test_celerys_own_commands_answer_as_its_users_expect(services: Services, celery_setup: CeleryTestSetup) -> None:
    inspect = celery_setup.app.control.inspect(timeout=15, limit=len(ROLES))
    assert {name.split("@")[0] for name in inspect.ping()} == set(ROLES)
    queues = {name.split("@")[0]: [queue["name"] for queue in each] for name, each in inspect.active_queues().items()}
    assert queues == {role: [role] for role in ROLES}
    assert all({"flow.run", "flow.dispatch"} <= set(tasks) for tasks in inspect.registered().values())
    heartbeats = inspect._request("role")
    assert {name: heartbeat["node"] for name, heartbeat in heartbeats.items()} == {name: name for name in heartbeats}
    assert {heartbeat["role"] for heartbeat in heartbeats.values()} == set(ROLES)


def test_the_command_line_shows_the_role(services: Services, environment: dict[str, str], repository: Path) -> None:
    command = [sys.executable, "-m", "celery", "-A", "app", "inspect", "--timeout", "3", "role"]
    answer = subprocess.run(command, env={**os.environ, **environment}, cwd=repository, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert "gpu-worker@" in answer.stdout
    assert '"role": "gpu-worker"' in answer.stdout

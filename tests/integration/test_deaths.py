"""What becomes of roles, sessions and runs when workers die, freeze, stop and come back."""

from __future__ import annotations

import os
import signal
import time

import pytest

from app.errors import NoHealthyVariant, RegisterUnknown
from app.models.run import RunStatus
from app.wiring import Services
from tests.integration.conftest import TTL_S, StartWorker, wait_for_workers
from tests.integration.flows import counting, deploy, is_running, waiting
from tests.servers import wait_until

pytestmark = pytest.mark.integration

# The dispatcher beats all along: it is the witness that Redis was there, without which a death would look like a gap.
ROLES = ["dispatcher"]


def _pick(services: Services, session: str) -> str | None:
    """Return the label that a session gets, or ``None`` if it is refused for want of healthy roles.

    A machine too busy to beat within these scaled times makes a gap: the register says so, and it passes.
    """
    while True:
        try:
            return services.runs.resolve("greeting", {"meta": {"session_id": session}}).variant.label
        except NoHealthyVariant:
            return None
        except RegisterUnknown:
            time.sleep(0.1)


def _picks(services: Services) -> dict[str, str | None]:
    return {session: _pick(services, session) for session in (f"s{n}" for n in range(60))}


def test_a_dead_roles_sessions_move_and_come_back_and_nobody_elses_do(
    services: Services, start_worker: StartWorker
) -> None:
    deploy(services, "greeting", counting("greeting"), stable=(80, ["alpha"]), canary=(20, ["beta"]))
    alpha, beta = start_worker("alpha"), start_worker("beta")
    wait_for_workers(services, 1, role="alpha")
    wait_for_workers(services, 1, role="beta")
    picks = _picks(services)
    assert set(picks.values()) == {"stable", "canary"}
    moved = next(session for session, label in picks.items() if label == "canary")

    beta.kill()
    killed_at = time.monotonic()
    wait_until(lambda: _pick(services, moved) == "stable", seconds=20, what="the canary is skipped")
    assert time.monotonic() - killed_at < TTL_S + 2
    assert set(_picks(services).values()) == {"stable"}

    start_worker("beta")
    wait_until(lambda: _pick(services, moved) == "canary", seconds=20, what="the canary is back")
    assert _picks(services) == picks

    alpha.kill()
    wait_until(lambda: "stable" not in _picks(services).values(), seconds=TTL_S + 4, what="only the canary is left")
    assert set(_picks(services).values()) == {"canary"}


def test_with_nobody_left_a_run_is_refused(services: Services, start_worker: StartWorker) -> None:
    deploy(services, "lonely", counting("lonely"), only=(1, ["lonely"]))
    wait_until(lambda: services.register.snapshot().known, seconds=10, what="the register knows who lives")
    with pytest.raises(NoHealthyVariant, match="no variants with healthy target roles") as caught:
        services.runs.start("lonely", {})
    assert caught.value.retry_after > 0
    assert services.store.counter("lonely") == 0


def test_a_frozen_worker_is_pruned_though_its_children_live(services: Services, start_worker: StartWorker) -> None:
    worker = start_worker("frosty")
    wait_for_workers(services, 1, role="frosty")
    worker.container.signal_main(signal.SIGSTOP)
    wait_for_workers(services, 0, role="frosty")
    worker.container.signal_main(signal.SIGCONT)
    wait_for_workers(services, 1, role="frosty")


def test_a_stopped_worker_says_goodbye_and_hands_its_runs_back(services: Services, start_worker: StartWorker) -> None:
    deploy(services, "long", waiting(*[0.3] * 30), only=(1, ["steady"]))
    worker = start_worker("steady")
    wait_for_workers(services, 1, role="steady")
    run = services.runs.start("long", {})
    wait_until(lambda: is_running(services, run.run_id), seconds=10, what="it runs")
    os.kill(worker.container.pid, signal.SIGTERM)
    worker.container.wait(10)
    assert [i for i in services.register.instances() if i.heartbeat.role == "steady"] == []
    handed = services.runs.get(run.run_id)
    assert (handed.status, handed.attempt, handed.losses) == (RunStatus.QUEUED, 2, 0)
    start_worker("steady")
    wait_until(lambda: is_running(services, run.run_id), seconds=20, what="it runs again")
    assert [e.type for e in services.runs.events(run.run_id) if e.type.startswith("run.")] == [
        "run.queued",
        "run.started",
        "run.rerouted",
        "run.started",
    ]


def test_two_workers_of_a_role_on_one_host_have_two_names_and_two_rows(
    services: Services, start_worker: StartWorker
) -> None:
    def names() -> list[str]:
        beats = [instance.heartbeat for instance in services.register.instances()]
        return sorted(beat.node.split("@")[0] for beat in beats if beat.role == "twin")

    first = start_worker("twin", pool="threads")
    wait_for_workers(services, 1, role="twin")
    start_worker("twin", pool="threads")
    wait_for_workers(services, 2, role="twin")
    assert names() == ["twin", "twin-2"]
    first.kill()
    wait_until(lambda: names() == ["twin-2"], seconds=TTL_S + 4, what="the first is gone, the second is not")
    start_worker("twin", pool="threads")
    wait_until(lambda: names() == ["twin", "twin-2"], seconds=20, what="the restarted worker has its name back")

"""Health checks: asked together, bounded in time, told apart by whose fault a failure is."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from threading import Event
from types import ModuleType

import pytest

from app.errors import SettingError
from app.health import Health, HealthCheck, find_checks, health_check, is_healthy, load_checks
from app.models.heartbeat import Check


def examine(*checks: HealthCheck, patience_s: float = 5) -> dict[str, Check]:
    return Health(checks, monotonic=time.monotonic, patience_s=patience_s).examine()


@pytest.fixture
def release() -> Iterator[Event]:
    """Ends whatever check a test left hanging."""
    event = Event()
    yield event
    event.set()


def test_a_check_that_returns_is_healthy_and_its_word_is_shown() -> None:
    answer = examine(HealthCheck("gpu", lambda: "1 device"))["gpu"]
    assert (answer.healthy, answer.detail, answer.scope) == (True, "1 device", "local")


def test_a_check_that_raises_is_unhealthy_with_the_reason() -> None:
    def broken() -> None:
        raise RuntimeError("no device")

    answer = examine(HealthCheck("gpu", broken))["gpu"]
    assert (answer.healthy, answer.detail) == (False, "no device")


def test_an_exception_without_text_is_shown_by_its_name() -> None:
    def broken() -> None:
        raise KeyError

    assert examine(HealthCheck("gpu", broken))["gpu"].detail == "KeyError"


def test_a_fault_of_a_shared_server_leaves_the_process_healthy() -> None:
    assert is_healthy({"redis": Check(healthy=False, scope="shared"), "pool": Check(healthy=True)})
    assert not is_healthy({"redis": Check(healthy=True, scope="shared"), "pool": Check(healthy=False)})
    assert is_healthy({})


def test_a_hung_check_is_unhealthy_and_the_others_are_answered(release: Event) -> None:
    hung, well = HealthCheck("hung", lambda: str(release.wait(30))), HealthCheck("well", lambda: "")
    answers = examine(hung, well, patience_s=0.05)
    assert not answers["hung"].healthy
    assert "has not answered" in answers["hung"].detail
    assert answers["well"].healthy


def test_a_hung_check_is_not_started_twice_and_no_longer_waited_for(release: Event) -> None:
    started = []

    def hung() -> str:
        started.append(1)
        release.wait(30)
        return "back"

    health = Health([HealthCheck("hung", hung)], monotonic=time.monotonic, patience_s=0.3)
    health.examine()
    before = time.monotonic()
    for _ in range(5):
        assert not health.examine()["hung"].healthy
    assert time.monotonic() - before < 0.25
    assert started == [1]


def test_a_check_that_hung_and_came_back_is_healthy_again(release: Event) -> None:
    health = Health([HealthCheck("slow", lambda: str(release.wait(30)))], monotonic=time.monotonic, patience_s=0.05)
    assert not health.examine()["slow"].healthy
    release.set()
    deadline = time.monotonic() + 5
    while not health.examine()["slow"].healthy:
        assert time.monotonic() < deadline


def test_each_check_has_its_own_limit(release: Event) -> None:
    before = time.monotonic()
    examine(HealthCheck("hung", lambda: str(release.wait(30)), timeout_s=0.05), patience_s=30)
    assert time.monotonic() - before < 5


def test_marked_functions_are_found_in_the_order_of_their_definition() -> None:
    module = ModuleType("probes")

    @health_check("first")
    def first() -> str:
        return "1"

    @health_check("second", scope="shared", timeout_s=9)
    def second() -> str:
        return "2"

    module.__dict__.update(first=first, second=second, other=len)
    assert [(check.name, check.scope, check.timeout_s) for check in find_checks(module)] == [
        ("first", "local", 2.0),
        ("second", "shared", 9),
    ]
    assert first() == "1"


def test_a_module_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(SettingError, match=r"HEALTH_MODULES='no\.such\.module'"):
        load_checks(["no.such.module"])


def test_a_module_without_checks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "empty_probes", ModuleType("empty_probes"))
    with pytest.raises(SettingError, match=r"empty_probes.*health_check"):
        load_checks(["empty_probes"])

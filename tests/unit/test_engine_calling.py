"""Calling handlers: nothing that they raise gets out, and their time is bounded."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from app.engine import Cancelled, HandBack
from app.errors import ServerUnavailable
from app.models.run import RunStatus
from app.nodes import HandlerError, Step
from app.nodes.testing import MemoryHost
from tests.flows import document, node, registry, run


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even my text")


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (HandlerError("slow down", code="RATE_LIMITED"), "RATE_LIMITED", "slow down"),
        (HandlerError("no"), "PERMANENT", "no"),
        (ValueError("odd"), "ERROR", "odd"),
        (KeyError("name"), "ERROR", "'name'"),
        (TimeoutError("late"), "TIMEOUT", "late"),
        (ConnectionResetError("gone"), "NETWORK_ERROR", "gone"),
        (ServerUnavailable("mongo", "away"), "TEMPORARY", "mongo does not answer: away"),
        (MemoryError(), "PERMANENT", "MemoryError"),
        (RecursionError("deep"), "PERMANENT", "deep"),
        (KeyboardInterrupt(), "PERMANENT", "KeyboardInterrupt"),
        (SystemExit(3), "PERMANENT", "3"),
        (GeneratorExit(), "PERMANENT", "GeneratorExit"),
        (Broken(), "ERROR", "Broken"),
    ],
)
@pytest.mark.parametrize("execution", [{}, {"timeoutMs": 60_000}])
def test_whatever_a_handler_raises_is_a_failure_with_a_code(
    raised: BaseException, code: str, message: str, execution: dict[str, int]
) -> None:
    def fail(_: Step) -> None:
        raise raised

    error = run(document({"a": node("t/fail", execution=execution)}), {}, registry(fail=fail)).outcome.error
    assert error is not None
    assert (error.code, error.message, error.node) == (code, message, "a")


def test_a_handler_without_bottom_fails_its_node_alone() -> None:
    def deep(step: Step) -> Any:
        return deep(step)

    error = run(document({"a": node("t/deep")}), {}, registry(deep=deep)).outcome.error
    assert error is not None
    assert error.code == "PERMANENT"


def test_a_handler_that_does_not_return_in_time_is_left_behind_and_cannot_speak_any_more() -> None:
    let_go, said = threading.Event(), threading.Event()
    late: list[BaseException] = []

    def stuck(step: Step) -> None:
        let_go.wait(30)
        try:
            step.log("I am still here")
        except HandlerError as error:
            late.append(error)
        said.set()

    ran = run(document({"a": node("t/stuck", execution={"timeoutMs": 20})}), {}, registry(stuck=stuck))
    assert ran.outcome.error is not None
    assert (ran.outcome.error.code, ran.outcome.error.node) == ("TIMEOUT", "a")
    let_go.set()
    assert said.wait(30)
    assert len(late) == 1
    assert ran.logs == []


def test_a_step_that_sleeps_past_its_time_fails_with_timeout() -> None:
    ran = run(document({"a": node("core/delay", settings={"seconds": 60}, execution={"timeoutMs": 1_500})}), {})
    assert ran.outcome.error is not None
    assert ran.outcome.error.code == "TIMEOUT"
    assert ran.host.time == pytest.approx(1.5)


def test_a_node_in_time_gives_its_output() -> None:
    source = document({"a": node("t/a", execution={"timeoutMs": 60_000})})
    assert run(source, {"n": 1}, registry(a=lambda step: step.input | {"left": step.deadline})).outcome.output == {
        "n": 1,
        "left": 60.0,
    }


def test_a_wish_of_the_world_comes_through_a_node_with_a_time_limit() -> None:
    def wish() -> None:
        raise HandBack("stopping")

    host = MemoryHost()

    def ask(step: Step) -> None:
        host.wish = wish
        step.check()

    with pytest.raises(HandBack):
        run(document({"a": node("t/ask", execution={"timeoutMs": 60_000})}), {}, registry(ask=ask), host=host)


def test_an_async_handler_runs_on_a_loop_of_its_own() -> None:
    async def fetch(step: Step) -> Any:
        await asyncio.sleep(0)
        step.token("x")
        return step.input | {"loop": asyncio.get_running_loop().is_running()}

    ran = run(document({"a": node("t/fetch")}), {}, registry(fetch=fetch))
    assert ran.outcome.output == {"loop": True}
    assert ran.story == ["+a", "node.token:a", "=a"]


def test_an_async_handler_is_cancelled_when_its_time_is_over_or_the_run_is_cancelled() -> None:
    ended: list[str] = []
    host = MemoryHost()

    def outlast(change: Any) -> Any:
        async def wait(_: Step) -> None:
            change()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        return wait

    def pass_time() -> None:
        host.time += 100

    def cancel() -> None:
        host.is_cancelled = True

    late = run(
        document({"a": node("t/late", execution={"timeoutMs": 60_000})}),
        {},
        registry(late=outlast(pass_time)),
        host=host,
    )
    assert late.outcome.error is not None
    assert late.outcome.error.code == "TIMEOUT"
    gone = run(document({"a": node("t/gone")}), {}, registry(gone=outlast(cancel)), host=host)
    assert gone.outcome.status == RunStatus.CANCELLED
    assert ended == ["cancelled", "cancelled"]


def test_what_an_async_handler_raises_is_a_failure() -> None:
    async def fail(_: Step) -> None:
        raise HandlerError("busy", code="TEMPORARY")

    error = run(document({"a": node("t/fail")}), {}, registry(fail=fail)).outcome.error
    assert error is not None
    assert error.code == "TEMPORARY"


def test_cancelled_raised_by_the_host_inside_a_handler_is_no_failure_of_the_node() -> None:
    def cancel() -> None:
        raise Cancelled

    host = MemoryHost()

    def ask(step: Step) -> None:
        host.wish = cancel
        step.sleep(10)

    ran = run(document({"a": node("t/ask")}), {}, registry(ask=ask), host=host)
    assert (ran.outcome.status, ran.story) == (RunStatus.CANCELLED, ["+a"])

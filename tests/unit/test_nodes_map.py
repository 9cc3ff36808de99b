"""core/map: another handler for each item of a list."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from app.models.run import RunError
from app.nodes import HandlerError, Step
from tests.flows import document, node, registry, run


def mapped(items: Any, function: Any, **settings: Any) -> Any:
    source = document({"m": node("core/map", settings={"items": "list", "handler": "t/one", **settings})})
    return run(source, {"list": items}, registry(one=function))


def test_items_are_handled_in_order_with_keys_of_their_own() -> None:
    keys: list[str] = []

    def one(step: Step) -> Any:
        keys.append(step.key)
        step.log(f"item {step.input}")
        return step.input * 2

    ran = mapped([3, 1, 2], one)
    assert ran.outcome.output == {"items": [6, 2, 4]}
    assert keys == ["run:m/0", "run:m/1", "run:m/2"]
    assert ran.logs == ["item 3", "item 1", "item 2"]


def test_concurrency_keeps_the_order_of_the_list() -> None:
    together = threading.Barrier(4, timeout=30)

    def one(step: Step) -> Any:
        # Breaks unless four are under way at once; the first of the list is the last to end.
        together.wait()
        return step.input + 1

    assert mapped(list(range(8)), one, concurrency=4).outcome.output == {"items": list(range(1, 9))}


def test_an_async_handler_is_mapped_too() -> None:
    async def one(step: Step) -> Any:
        return -step.input

    assert mapped([1, 2], one, concurrency=2).outcome.output == {"items": [-1, -2]}


def test_the_first_failure_is_the_nodes_and_no_further_item_is_begun() -> None:
    begun: list[int] = []

    def one(step: Step) -> Any:
        begun.append(step.input)
        if step.input == 2:
            raise HandlerError("two is too much", code="RATE_LIMITED")
        return step.input

    ran = mapped([1, 2, 3], one)
    assert ran.outcome.error == RunError("RATE_LIMITED", "part 1: two is too much", 1, "m")
    assert begun == [1, 2]


def test_what_is_no_list_or_no_json_fails_the_node() -> None:
    for items, function, message in (
        ("text", lambda _: 1, "no list at 'list'"),
        ([1], lambda _: object(), "output /: is a object"),
    ):
        error = mapped(items, function).outcome.error
        assert error is not None
        assert error.code == "VALIDATION"
        assert message in error.message


def test_an_empty_list_stays_empty() -> None:
    assert mapped([], lambda _: 1).outcome.output == {"items": []}


def test_settings_of_the_handler_are_checked_where_it_is_known() -> None:
    source = document(
        {
            "m": node(
                "core/map",
                settings={"items": "l", "handler": "core/template-render", "settings": {"template": "{{ n }}"}},
            )
        }
    )
    assert run(source, {"l": [{"n": 1}]}).outcome.output == {"items": [{"n": 1, "content": "1"}]}
    wrong = document({"m": node("core/map", settings={"items": "l", "handler": "core/count"})})
    error = run(wrong, {"l": [1]}).outcome.error
    assert error is not None
    assert error.message == "settings of core/count: /key: is required"


@pytest.mark.parametrize("concurrency", [1, 2])
def test_what_a_map_calls_shares_its_time_limit(concurrency: int) -> None:
    deadlines: list[float | None] = []

    def slow(step: Step) -> None:
        deadlines.append(step.deadline)
        step.sleep(2)

    settings = {"items": "list", "handler": "t/slow", "concurrency": concurrency}
    source = document({"a": node("core/map", settings=settings, execution={"timeoutMs": 3_000})})
    ran = run(source, {"list": list(range(50))}, registry(slow=slow))
    assert ran.outcome.error is not None
    assert (ran.outcome.error.code, ran.outcome.error.node) == ("TIMEOUT", "a")
    assert set(deadlines) == {3.0}
    assert len(deadlines) <= 4

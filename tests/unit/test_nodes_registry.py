"""Collecting handlers from modules, and what authors get."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from app.errors import SettingError
from app.nodes import Code, HandlerError, HandlerSettings, Step, handler
from app.nodes.registry import HandlerRegistry, load_handlers
from app.nodes.testing import try_handler

BUILTIN = {
    "core/count", "core/delay", "core/fail", "core/http-request", "core/join", "core/log", "core/map", "core/router",
    "core/source", "core/template-render", "core/terminal", "core/transform",
}  # fmt: skip


class Greeting(HandlerSettings):
    salute: str = "Hello"


@handler("test/greet", settings=Greeting)
@handler("test/hello", settings=Greeting)
def greet(step: Step) -> dict[str, str]:
    step.progress(0.5)
    return {"text": f"{step.settings.salute} {step.input['name']}", "secret": step.secret("TOKEN")}


def module(**contents: Any) -> ModuleType:
    made = ModuleType("made_by_a_test")
    vars(made).update(contents)
    return made


def test_the_built_in_handlers_are_always_there() -> None:
    assert set(load_handlers(entry_points=False).refs) == BUILTIN
    assert load_handlers().refs >= BUILTIN


def test_a_decorated_function_stays_a_function_and_is_found_by_each_of_its_names() -> None:
    registry = HandlerRegistry.load([module(greet=greet, alias=greet, number=3, kind=Greeting)])
    assert registry.refs == {"test/greet", "test/hello"}
    found = registry.find(("nobody/has-this", "test/hello", "test/greet"))
    assert found is not None
    assert (found.ref, found.function) == ("test/hello", greet)
    assert registry.find(("nobody/has-this",)) is None
    assert registry.find(()) is None


def test_a_handler_is_tried_alone() -> None:
    tried = try_handler(greet, {"name": "Ada"}, settings={"salute": "Hi"}, secrets={"TOKEN": "s"})
    assert tried.output == {"text": "Hi Ada", "secret": "s"}
    assert [event.type for event in tried.events] == ["node.progress"]
    with pytest.raises(HandlerError, match="no secret 'TOKEN'"):
        try_handler(greet, {"name": "Ada"})


def test_an_async_handler_is_tried_to_its_end() -> None:
    @handler("test/later")
    async def later(step: Step) -> dict[str, Any]:
        await asyncio.sleep(0)
        step.log("done")
        return step.input | {"late": True}

    @handler("test/nothing")
    async def nothing(_: Step) -> None: ...

    tried = try_handler(later, {"n": 1})
    assert tried.output == {"n": 1, "late": True}
    assert [event.type for event in tried.events] == ["log"]
    assert try_handler(nothing, {"n": 1}).output == {"n": 1}


def test_the_same_module_may_be_named_twice() -> None:
    assert set(load_handlers(["app.nodes.builtin", "app.nodes.builtin"], entry_points=False).refs) == BUILTIN


def test_two_functions_with_one_name_are_refused_by_both_their_names() -> None:
    @handler("test/greet")
    def impostor(_: Step) -> None: ...

    with pytest.raises(SettingError, match=r"'test/greet' is registered twice: by .*greet and by .*impostor"):
        HandlerRegistry.load([module(greet=greet), module(impostor=impostor)])


def test_a_module_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_nodes_of_a_test.py").write_text("1 / 0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(
        SettingError, match=r"NODE_MODULES names the module 'broken_nodes_of_a_test', .*ZeroDivisionError"
    ):
        load_handlers(["broken_nodes_of_a_test"], entry_points=False)
    with pytest.raises(
        SettingError, match=r"NODE_MODULES names the module 'no_such_module_here', .*ModuleNotFoundError"
    ):
        load_handlers(["no_such_module_here"])


@pytest.mark.parametrize("ref", ["", " core/x", "core/x "])
def test_a_handler_needs_a_name(ref: str) -> None:
    with pytest.raises(ValueError, match="no name of a handler"):
        handler(ref)


def test_a_step_emits_only_what_handlers_may_and_json_can_say() -> None:
    @handler("test/bad-type")
    def bad_type(step: Step) -> None:
        step.emit("completed", {})

    @handler("test/bad-data")
    def bad_data(step: Step) -> None:
        step.log("x", value={1, 2})

    for function, message in ((bad_type, "not 'completed'"), (bad_data, "/value: is a set")):
        with pytest.raises(HandlerError, match=message) as caught:
            try_handler(function, {})
        assert caught.value.code == Code.VALIDATION

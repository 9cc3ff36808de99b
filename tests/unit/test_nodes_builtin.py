"""The built-in handlers, each alone or in a flow."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine import Cancelled
from app.errors import BadRequest
from app.models.run import RunStatus
from app.nodes import HandlerError, builtin
from app.nodes.paths import MISSING, drop, get, put
from app.nodes.template import Template
from app.nodes.testing import MemoryHost, try_handler
from tests.flows import chain, document, node, run


def output(handler: Any, input: Any, **settings: Any) -> Any:
    return try_handler(handler, input, settings=settings).output


@pytest.mark.parametrize("handler", [builtin.source, builtin.terminal, builtin.join])
def test_some_pass_on_what_arrives(handler: Any) -> None:
    assert output(handler, {"n": 1}, colour="kept, not used") == {"n": 1}


def test_log_writes_a_rendered_line_and_passes_the_packet_on() -> None:
    tried = try_handler(builtin.log, {"who": "Ada"}, settings={"message": "hello {{ who }}", "level": "warning"})
    assert tried.output == {"who": "Ada"}
    assert [event.data for event in tried.events] == [{"level": "warning", "message": "hello Ada"}]


def test_template_render_adds_a_key() -> None:
    assert output(builtin.template_render, {"a": {"b": 1}}, template="<{{.a.b}}|{{ a.c }}>") == {
        "a": {"b": 1},
        "content": "<1|>",
    }
    assert output(builtin.template_render, {}, template="x", outputKey="text") == {"text": "x"}


def test_router_adds_the_first_route_that_holds() -> None:
    routes = [{"when": "input.n > 10", "route": "big"}, {"when": "output.n > 5", "route": "middle"}]
    assert [output(builtin.router, {"n": n}, routes=routes)["route"] for n in (11, 6, 1)] == [
        "big",
        "middle",
        "default",
    ]
    assert output(builtin.router, {}, routes=routes) == {"route": "default"}


def test_transform_picks_then_renames_then_sets() -> None:
    packet = {"a": {"x": 1, "y": 2}, "b": 3, "c": 4}
    done = output(
        builtin.transform,
        packet,
        pick=["a.x", "b", "nothing"],
        rename={"a.x": "x", "b": "deep.b", "gone": "z"},
        set={"deep.c": [1], "b": None},
    )
    assert done == {"a": {}, "x": 1, "deep": {"b": 3, "c": [1]}, "b": None}
    assert output(builtin.transform, packet) == packet
    assert packet == {"a": {"x": 1, "y": 2}, "b": 3, "c": 4}


@pytest.mark.parametrize(
    ("seconds", "input", "slept"),
    [
        (1.25, {}, 1.25),
        (0, {}, 0),
        ("{{ s }}", {"s": 2}, 2),
        ("{{ s }}", {"s": " 0.5 "}, 0.5),
        ("{{ s }}", {}, 0),
        ("3", {}, 3),
    ],
)
def test_delay_waits_for_a_number_or_a_rendered_one(seconds: Any, input: Any, slept: float) -> None:
    ran = run(document({"a": node("core/delay", settings={"seconds": seconds})}), input)
    assert (ran.outcome.output, sum(ran.host.slept)) == (input, slept)


@pytest.mark.parametrize("value", ["soon", -1, "nan", "inf", 1e9, {}, True])
def test_delay_refuses_what_renders_to_no_time(value: Any) -> None:
    error = run(document({"a": node("core/delay", settings={"seconds": "{{ s }}"})}), {"s": value}).outcome.error
    assert error is not None
    assert error.code == "VALIDATION"


def test_delay_wakes_when_the_run_is_cancelled() -> None:
    host = MemoryHost()

    def check() -> None:
        if host.time > 1:
            raise Cancelled

    host.wish = check
    ran = run(document({"a": node("core/delay", settings={"seconds": 3_600})}), {}, host=host)
    assert ran.outcome.status == RunStatus.CANCELLED
    assert host.time < 2


def test_count_counts_a_packet_once_however_often_it_is_executed() -> None:
    host = MemoryHost()
    source = document(
        {"a": node("core/count", settings={"key": "k:{{ order }}"}), "b": node("core/count", settings={"key": "k:7"})},
        chain("a", "b"),
    )
    assert run(source, {"order": 7}, host=host).outcome.output == {"order": 7, "count": 2}
    assert run(source, {"order": 7}, host=host).outcome.output == {"order": 7, "count": 2}
    assert run(source, {"order": 7}, host=host, run_id="another").outcome.output == {"order": 7, "count": 4}
    assert set(host.counters) == {"k:7"}


def test_count_needs_a_key() -> None:
    with pytest.raises(HandlerError, match="renders to 0 characters"):
        output(builtin.count, {}, key="{{ nothing }}")


def test_fail_fails() -> None:
    with pytest.raises(HandlerError, match="no luck, Ada") as caught:
        output(builtin.fail, {"who": "Ada"}, message="no luck, {{ who }}", code="TEMPORARY")
    assert caught.value.code == "TEMPORARY"


@pytest.mark.parametrize(
    ("handler", "settings"),
    [
        (builtin.template_render, {"template": "x"}),
        (builtin.router, {"routes": []}),
        (builtin.transform, {}),
        (builtin.count, {"key": "k"}),
    ],
)
def test_handlers_that_add_a_key_need_an_object(handler: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(HandlerError, match="no object"):
        try_handler(handler, [1], settings=settings)


@pytest.mark.parametrize(
    ("handler", "settings", "at"),
    [
        (builtin.log, {}, "/settings/message"),
        (builtin.log, {"message": 3}, "/settings/message"),
        (builtin.template_render, {"template": "{{ range .x }}"}, "/settings/template"),
        (builtin.template_render, {"template": "x", "output_key_": 1}, "/settings/output_key_"),
        (builtin.router, {"routes": [{"when": "a ==", "route": "x"}]}, "/settings/routes/0/when"),
        (builtin.transform, {"pick": "a"}, "/settings/pick"),
        (builtin.delay, {"seconds": -1}, "/settings/seconds"),
        (builtin.delay, {"seconds": True}, "/settings/seconds"),
        (builtin.fail, {"message": "x", "code": "no code"}, "/settings/code"),
        (builtin.map_items, {"items": "x", "handler": "h", "concurrency": 17}, "/settings/concurrency"),
        (builtin.http_request, {"url": "http://x", "allow": ["not a network"]}, "/settings/allow"),
    ],
)
def test_wrong_settings_are_named_with_their_place(handler: Any, settings: dict[str, Any], at: str) -> None:
    with pytest.raises(BadRequest) as caught:
        try_handler(handler, {}, settings=settings)
    assert [fault.at for fault in caught.value.faults] == [at]


# --- templates and paths -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("plain", "plain"),
        ("{{ a }}", "text"),
        ("{{.a}}{{ .a }}", "texttext"),
        ("{{ n }} {{ f }} {{ t }} {{ z }}", "1 0.5 true "),
        ("{{ o }}", '{"k":[1,2]}'),
        ("{{ o.k.1 }}", "2"),
        ("{{ o.k.9 }}", ""),
        ("{{ a.b.c }}", ""),
        ("{ { a } }", "{ { a } }"),
        ("{{ user-name }}", "dash"),
        ("{{ größe }}", "XL"),
        ("}} {{ a }}", "}} text"),
    ],
)
def test_templates_render_paths(template: str, text: str) -> None:
    root = {"a": "text", "n": 1, "f": 0.5, "t": True, "z": None, "o": {"k": [1, 2]}, "user-name": "dash", "größe": "XL"}
    assert Template(template).render(root) == text


def test_a_dot_is_the_whole_packet() -> None:
    assert Template("{{ . }}").render({"a": 1}) == '{"a":1}'


@pytest.mark.parametrize(
    "template", ["{{ if x }}", "{{}}", "{{ a | upper }}", "{{ f(x) }}", "{{ a..b }}", "{{ 'x' }}", "{{ a. }}"]
)
def test_a_template_knows_paths_and_nothing_else(template: str) -> None:
    with pytest.raises(ValueError, match="only paths like"):
        Template(template)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc0"), inner, max_size=3),
    max_leaves=8,
)
path_text = st.lists(st.sampled_from(["a", "b", "c", "0", "1"]), min_size=1, max_size=3).map(".".join)


@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet="ab.{} |0", max_size=20), root=json_values)
def test_a_template_is_refused_or_renders_whatever_the_packet(text: str, root: Any) -> None:
    try:
        template = Template(text)
    except ValueError:
        return
    assert isinstance(template.render(root), str)


@settings(max_examples=60, deadline=None)
@given(packet=st.dictionaries(st.sampled_from("abc"), json_values, max_size=3), path=path_text, value=json_values)
def test_what_is_put_is_got_and_what_is_dropped_is_gone(packet: dict[str, Any], path: str, value: Any) -> None:
    before = repr(packet)
    assert get(put(packet, path, value), path) == value
    dropped = drop(put(packet, path, value), path)
    assert get(dropped, path) is MISSING
    assert repr(packet) == before

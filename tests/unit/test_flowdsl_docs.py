"""``docs/flowdsl.md`` tells the truth: its table of fields, its handlers. Examples run."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.errors import InvalidDocument
from app.flowdsl import compile_flow, flow_names, read
from app.models.base import parse
from app.models.deployment import DeploymentIn
from app.nodes.registry import load_handlers
from tests.flows import run

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "flowdsl.md").read_text()
ROW = re.compile(r"^\| `([^`]+)` \| (honoured|checked|kept)[^|]* \| (refused|warned about)? ?\|$", re.MULTILINE)
FIELDS = {field: (treatment, wrong) for field, treatment, wrong in ROW.findall(PAGE)}
EXAMPLES = sorted((ROOT / "examples").glob("*.flowdsl.*"))
PUBLISHED = sorted((ROOT.parent / "shared" / "flowdsl").glob("*.flowdsl.*"))

JUNK: Any = [[]]
"""Right for no field that is looked at."""

BASE: dict[str, Any] = {
    "flowdsl": "1.0.0",
    "info": {"title": "T", "version": "1"},
    "flows": {
        "x": {
            "entrypoints": [{"node": "x", "message": {"$ref": "#/components/events/x"}}],
            "nodes": {"x": {"x-action-ref": "t/x", "operationId": "x"}, "y": {"$ref": "#/components/nodes/x"}},
            "edges": [
                {"from": "x", "to": "y", "packet": "#/components/packets/x", "delivery": {"retryPolicy": {}}},
                {"from": "x", "to": "y", "delivery": {"retryPolicy": {"$ref": "#/components/policies/x"}}},
            ],
        }
    },
    "components": {
        "nodes": {"x": {"operationId": "op"}},
        "packets": {"x": {"type": "object"}},
        "events": {"x": {"payload": {"$ref": "#/components/packets/x"}}},
        "policies": {"x": {}},
    },
}


def steps(field: str) -> list[str | int]:
    found: list[str | int] = []
    for part in field.split("."):
        name = "x" if part.rstrip("[]") == "*" else part.removesuffix("[]")
        found += [name, 0] if part.endswith("[]") else [name]
    return found


def with_junk(field: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Return a document with a value at ``field`` that cannot be right, one without that field, and its pointer."""
    document = copy.deepcopy(BASE)
    edge = document["flows"]["x"]["edges"][0]
    if field.endswith("delivery.packet"):
        del edge["packet"]
    if field.endswith("delivery.backend"):
        edge["delivery"]["mode"] = "ephemeral"
    if "delivery.stream" in field:
        edge["delivery"] |= {"mode": "stream", "stream": {"bus": "redis", "topic": "t"}}
    if "idempotency" in field:
        document["flows"]["x"]["nodes"]["x"]["idempotency"] = {"keyExpression": "input.x"}
    path = steps(field)
    return _set(document, path, JUNK), _set(document, path, None), "".join(f"/{step}" for step in path)


def _set(document: dict[str, Any], path: list[str | int], leaf: Any) -> dict[str, Any]:
    document = copy.deepcopy(document)
    value: Any = document
    for step in path[:-1]:
        value = value[step] if isinstance(step, int) else value.setdefault(step, {})
    value[path[-1]] = leaf
    return document


def places(document: dict[str, Any]) -> tuple[list[str], list[str]]:
    try:
        names = flow_names(document)
        plan = compile_flow(document, names[0])
    except InvalidDocument as error:
        return [fault.at for fault in error.faults], []
    return [], [fault.at for fault in plan.lint]


def test_the_table_was_found() -> None:
    assert len(FIELDS) == PAGE[PAGE.index("| field |") :].count("\n| `") > 60
    assert places(BASE) == ([], [])


@pytest.mark.parametrize("field", FIELDS)
def test_a_wrong_value_has_the_effect_that_the_table_says(field: str) -> None:
    document, _, pointer = with_junk(field)
    refused, warned = places(document)
    # That a stream without a topic is published nowhere is warned about, whatever else is wrong.
    warned = [at for at in warned if not at.endswith("/topic") or field.endswith((".topic", ".stream"))]
    wrong = FIELDS[field][1]
    assert (bool(refused), bool(warned)) == (wrong == "refused", wrong == "warned about")
    if wrong and not field.startswith("components."):  # what is wrong there is named where it is used
        assert any(at.startswith(pointer) for at in (*refused, *warned))


@pytest.mark.parametrize("field", [field for field, (treatment, _) in FIELDS.items() if treatment == "kept"])
def test_what_is_kept_changes_nothing(field: str) -> None:
    def shape(document: dict[str, Any]) -> Any:
        plan = compile_flow(document, "x")
        nodes = [(item.candidates, item.settings, item.timeout_ms, item.retry, item.ports) for item in plan.nodes]
        edges = [(item.tolerant, item.retry, item.unsupported, item.by_packet, item.when) for item in plan.edges]
        return plan.title, nodes, edges, plan.lint, plan.needs

    with_it, without, _ = with_junk(field)
    assert shape(with_it) == shape(without)


def fields_of(value: Any, at: str = "") -> Iterator[str]:
    """Yield the fields of a document as the table writes them."""
    if isinstance(value, dict):
        for key, item in value.items():
            named = at.endswith(("flows", "nodes", "components.packets", "components.events", "components.policies"))
            here = f"{at}.{'*' if named else key}".lstrip(".")
            yield here
            yield from fields_of(item, here)
    elif isinstance(value, list):
        for item in value:
            yield f"{at}[]"
            yield from fields_of(item, f"{at}[]")


NAMED = ("components", "components.nodes", "components.packets", "components.events", "components.policies")
OTHER_LANGUAGES = re.compile(r"\.(settings|packet|message|outputs)$|^components\.(packets|events)\.\*$")
"""Fields whose inside is not FlowDSL: a handler's settings, JSON Schema."""


def is_said(field: str) -> bool:
    """Return whether the table has a field, or has it as a part of a whole that is kept or in another language."""
    field = field.replace("components.nodes.*.", "flows.*.nodes.*.")
    field = field.replace("components.policies.*.", "flows.*.edges[].delivery.retryPolicy.")
    field = field.replace("defaults.retryPolicy.", "edges[].delivery.retryPolicy.")
    if field in FIELDS or field in NAMED or field.endswith(".$ref"):
        return True
    while field and field not in FIELDS:
        field = re.sub(r"(^|\.)[^.\[]+$|\[\]$", "", field)
    return bool(field) and (FIELDS[field][0] == "kept" or OTHER_LANGUAGES.search(field) is not None)


@pytest.mark.parametrize("path", [*EXAMPLES, *PUBLISHED], ids=lambda path: path.name)
def test_the_table_has_every_field_that_documents_use(path: Path) -> None:
    document = read(path.read_bytes())
    assert {field for field in fields_of(document) if not is_said(field)} == set()


def test_the_page_lists_every_built_in_handler() -> None:
    handlers = PAGE[PAGE.index("## Built-in handlers") : PAGE.index("## Every field")]
    assert set(re.findall(r"`(core/[a-z-]+)`", handlers)) == set(load_handlers(entry_points=False).refs)


# --- the examples ------------------------------------------------------------------------------------------------

INPUTS = {
    "greeting": ({"name": "Ada"}, {"name": "Ada", "greeting": "Hello Ada, welcome aboard."}),
    "support-triage": (
        {"text": "help", "customer": {"name": "Bo"}},
        {"text": "help", "customer": {"name": "Bo"}, "route": "default",
         "reply": "Dear Bo, your ticket went to the default queue."},
    ),
    "slow-count": ({"seconds": 2}, {"seconds": 2, "count": 1}),
    "retry-loop": ({"order": 7}, {"order": 7, "count": 3, "report": "order 7 was tried 3 times"}),
}  # fmt: skip


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_without_a_warning(path: Path) -> None:
    document = read(path.read_bytes())
    [name] = flow_names(document)
    plan = compile_flow(document, name)
    assert plan.warnings(load_handlers(entry_points=False).refs) == []
    given, output = INPUTS[name]
    ran = run(plan, given)
    assert ran.outcome.output == output
    assert [message for message in ran.logs if "edge" in message] == []


def test_the_examples_deployments_are_valid_and_name_flows_that_there_are() -> None:
    flows = {name for path in EXAMPLES for name in flow_names(read(path.read_bytes()))}
    assert flows == set(INPUTS)
    paths = sorted((ROOT / "examples" / "deployments").glob("*.json"))
    assert len(paths) >= 5
    for path in paths:
        deployment = parse(DeploymentIn, json.loads(path.read_text()))
        assert {variant.flow_id for variant in deployment.variants} <= flows

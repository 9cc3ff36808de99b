"""The pages, as the server renders them: what they show, what they say when there is nothing or a server is away."""

from __future__ import annotations

import json
import re
from html import unescape
from threading import Event
from typing import Any

import pytest

from admin.pages import shapes, words
from admin.pages.gather import gather
from app.errors import BadRequest, ServerUnavailable, Unavailable
from tests.unit.admin_world import CANARY, World, world

__all__ = ["world"]

PAGES = ["/", "/workers", "/flows/deployments", "/flows/new-deployment", "/flows/deployments/hello", "/runs"]


def text_of(world: World, path: str, status: int = 200) -> str:
    answer = world.client.get(path)
    assert answer.status_code == status, answer.text
    seen = re.sub(r"<template.*?</template>", "", answer.text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", seen))


@pytest.fixture
def run(world: World) -> dict[str, Any]:
    world.ready()
    run = world.finished(input={"name": "<script>alert(1)</script>"}, meta={"session_id": "s"})
    world.mirror()
    return run


def test_the_overview_shows_roles_deployments_and_the_last_runs(world: World, run: dict[str, Any]) -> None:
    text = text_of(world, "/")

    for shown in ("gpu-worker", "dispatcher", "hello", "stable", "canary", "90 %", "completed", run["runId"][:8]):
        assert shown in text


def test_the_overview_follows_a_run(world: World, run: dict[str, Any]) -> None:
    html = world.client.get("/", query_string={"follow": run["runId"]}).text

    assert f'data-timeline="{run["events"]}"' in html


@pytest.mark.parametrize("path", PAGES)
def test_no_page_runs_a_script_of_its_own_text(world: World, run: dict[str, Any], path: str) -> None:
    for html in (world.client.get(path).text, world.client.get(f"/runs/{run['runId']}").text):
        assert "<script>alert" not in html
        assert not re.search(r"<script(?![^>]*\bsrc=)", html)
        assert not re.search(r"\son\w+=|style=|javascript:|https?://(?!localhost)", html)


@pytest.mark.parametrize("path", PAGES)
def test_pages_name_themselves_and_label_what_they_ask(world: World, run: dict[str, Any], path: str) -> None:
    html = world.client.get(path).text

    assert "<title>" in html
    assert '<html lang="en">' in html
    assert html.count("<h1") == 1
    for field in re.findall(r"<(?:input|select|textarea)\b[^>]*>", html):
        named = re.search(r'aria-label|type="hidden"', field) or re.search(
            r"<label\b[^>]*>[^<]*(?:<span[^<]*</span>)?\s*" + re.escape(field), html
        )
        assert named, field


def test_every_page_says_what_to_do_next_when_there_is_nothing(world: World) -> None:
    assert "SERVICE_ROLE=worker celery -A app worker" in text_of(world, "/")
    assert "/api/v1/flows/import" in text_of(world, "/")
    assert "SERVICE_ROLE=worker celery -A app worker" in text_of(world, "/workers")
    assert "Make the first one" in text_of(world, "/flows/deployments")
    assert "No run yet" in text_of(world, "/runs")


def test_workers_show_their_checks_and_roles_that_nobody_answers_for(world: World) -> None:
    world.import_flow()
    world.deploy()
    world.beat("worker", healthy=False, checks={"gpu": {"healthy": False, "detail": "no device found"}})

    text = text_of(world, "/workers")

    assert "unhealthy" in text
    assert "no device found" in text
    assert "nobody answers for it" in text
    assert "SERVICE_ROLE=gpu-worker celery -A app worker" in text


def test_a_variant_whose_roles_are_all_dead_is_warned_of(world: World) -> None:
    world.import_flow()
    world.deploy()
    world.beat("worker")

    assert "skipped: no role of it is healthy" in text_of(world, "/flows/deployments")
    text = text_of(world, "/flows/deployments/hello")
    assert "canary is skipped: its role has no healthy worker" in text
    assert re.search(r"stable greet published worker healthy 90 % 100 % yes", text)


def test_a_deployment_that_nothing_can_run_says_so_in_the_seed_s_words(world: World) -> None:
    world.import_flow()
    world.deploy()

    assert "nothing can run" in text_of(world, "/flows/deployments")
    assert "no variants with healthy target roles" in text_of(world, "/flows/deployments/hello")


def test_the_picker_offers_living_roles_and_those_already_named(world: World) -> None:
    world.ready()
    world.beat("spare")
    world.services.register.leave("gpu-worker-1")

    html = world.client.get("/flows/deployments/hello").text

    picker = html[html.index('class="picker"') : html.index("</fieldset>", html.index('class="picker"'))]
    found = {role: state for state, role in re.findall(r'<label class="chip (\w+)" data-role="([^"]+)"', picker)}
    assert found == {"gpu-worker": "down", "spare": "up", "worker": "up"}
    assert re.search(r'value="worker" checked', picker)


def test_a_deployment_page_holds_what_the_api_would_take_back(world: World) -> None:
    world.ready()
    shown = world.client.get("/api/v1/deployments/hello").json

    html = world.client.get("/flows/deployments/hello").text

    (attribute,) = re.findall(r"data-deployment='([^']*)'", html)
    assert json.loads(unescape(attribute)) == shown


def test_a_run_shows_where_it_ran_and_why(world: World, run: dict[str, Any]) -> None:
    text = text_of(world, f"/runs/{run['runId']}")

    assert f"Variant {run['variant']} : by its session ( session_id )" in text
    assert run["targetRole"] in text
    assert "completed" in text
    assert "Run again" in text
    assert "&lt;script&gt;" in world.client.get(f"/runs/{run['runId']}").text


def test_runs_are_filtered_by_a_form_whose_empty_fields_mean_any(world: World, run: dict[str, Any]) -> None:
    assert run["runId"][:8] in text_of(world, "/runs?deployment=&status=completed&role=&variant=&session=s")
    assert "No run is like that" in text_of(world, "/runs?status=failed")


@pytest.mark.parametrize("path", ["/runs/none", "/flows/deployments/none", "/nothing"])
def test_what_is_not_there_is_a_page_that_says_so(world: World, path: str) -> None:
    answer = world.client.get(path)

    assert (answer.status_code, answer.mimetype) == (404, "text/html")
    assert "<h1>" in answer.text


@pytest.mark.parametrize("path", [*PAGES, "run"])
def test_a_page_without_redis_shows_what_is_on_record_and_says_what_is_not_known(
    world: World, run: dict[str, Any], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    world.take_away("redis", monkeypatch)

    text = text_of(world, path.replace("run", f"/runs/{run['runId']}") if path == "run" else path)

    assert re.search("Nobody can say (who is alive|which roles are healthy)", text)
    assert "New runs are refused" in text
    assert "no workers" not in text


@pytest.mark.parametrize(
    ("path", "status"),
    [("/", 200), ("/workers", 200), ("/flows/deployments", 200), ("/runs", 200), ("/flows/deployments/hello", 503)],
)
def test_a_page_without_mongo_shows_the_fleet_and_says_what_cannot_be_read(
    world: World, run: dict[str, Any], monkeypatch: pytest.MonkeyPatch, path: str, status: int
) -> None:
    world.take_away("mongo", monkeypatch)

    text = text_of(world, path, status)

    assert "mongo does not answer" in text.lower()


def test_a_missing_dispatcher_is_said(world: World) -> None:
    world.beat("worker")

    assert "No dispatcher is alive" in text_of(world, "/")
    world.beat("dispatcher")
    assert "No dispatcher is alive" not in text_of(world, "/")


# --- pieces ------------------------------------------------------------------------------------------------------


def test_gathering_waits_no_longer_than_it_may() -> None:
    never = Event()
    try:
        answers = gather(0.05, fast=lambda: 1, slow=lambda: never.wait(10), broken=_unavailable)
    finally:
        never.set()

    assert answers.get("fast") == 1
    assert set(answers.faults) == {"slow", "broken"}
    assert answers.get("slow", "unknown") == "unknown"
    with pytest.raises(Unavailable, match=r"slow could not be read within 0\.05 s"):
        answers.need("slow")


def _unavailable() -> None:
    raise ServerUnavailable("mongo", "gone")


def test_what_is_wrong_with_a_question_itself_is_raised() -> None:
    def ask() -> None:
        raise BadRequest("no")

    with pytest.raises(BadRequest):
        gather(1, question=ask)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(None, ""), (0.0, "0 ms"), (0.42, "420 ms"), (3.21, "3.2 s"), (42, "42 s"), (125, "2 min"), (7200, "2 h"),
     (200_000, "2 d")],
)  # fmt: skip
def test_spans_are_said_shortly(seconds: float | None, said: str) -> None:
    assert words.span(seconds) == said


def test_a_role_is_not_called_dead_while_nobody_knows() -> None:
    assert shapes.chip("gpu", None).state == "unknown"
    assert shapes.chip("gpu", {}).state == "down"
    assert CANARY["variants"]

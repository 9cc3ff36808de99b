"""The pages in a real browser, over services in memory behind a threaded server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from threading import Thread

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from werkzeug.serving import make_server

from admin.app import create_app
from admin.settings import admin_settings
from app.models.event import NewEvent
from app.wiring import build_memory
from tests.unit.admin_world import CANARY, World

CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.e2e,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]

PATIENCE_MS = 15_000


class Site(World):
    """A world with an address."""

    url: str

    def goto(self, page: Page, path: str) -> None:
        page.goto(self.url + path)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


@pytest.fixture
def site() -> Iterator[Site]:
    services = build_memory(
        admin_settings({"HEARTBEAT_TTL_S": "600", "HEARTBEAT_INTERVAL_S": "200", "LEASE_TTL_S": "600"})
    )
    app = create_app(lambda: services)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = Thread(target=server.serve_forever)
    thread.start()
    with app.test_client() as client:
        site = Site(app, client, services)
        site.url = f"http://127.0.0.1:{server.server_port}"
        yield site
    app.extensions["rolecall"].stop()
    server.shutdown()
    thread.join()
    server.server_close()
    services.close()


@pytest.fixture
def context(browser: Browser, site: Site) -> Iterator[BrowserContext]:
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A tab in which nothing may go wrong unseen."""
    expect.set_options(timeout=PATIENCE_MS)
    page, faults = context.new_page(), []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    yield page
    # Refusals of the server show up there too; a test that provokes them looks at what the page says of them.
    assert [fault for fault in faults if "Failed to load resource" not in fault] == []


def test_a_run_is_started_from_the_overview_and_followed_to_its_end(site: Site, page: Page) -> None:
    site.ready()
    site.goto(page, "/")
    page.get_by_label("Input (JSON object)").fill('{"name": "Ada"}')
    page.get_by_role("button", name="Start a run").click()
    page.wait_for_url("**/?follow=*")
    run_id = page.url.partition("follow=")[2]
    expect(page.get_by_label(f"Events of run {run_id}")).to_contain_text("run.queued")
    run = site.client.get(f"/api/v1/runs/{run_id}").json
    assert run["input"] == {"name": "Ada"}

    site.claim(run)
    site.append(run, 1, *(NewEvent("node.token", "say", {"text": text}) for text in ("Hel", "lo ", "Ada")))
    expect(page.locator("[data-type='node.token'] .text")).to_have_text("Hello Ada")
    expect(page.locator("[data-timeline-state]")).to_have_text("Live")
    site.finish(run, {"content": "Hello Ada"})

    expect(page.locator("[data-timeline-state]")).to_have_text("Ended: completed. 6 events.")
    expect(page.locator("[data-timeline] li")).to_have_count(4)


def test_a_run_s_page_changes_with_the_run(site: Site, page: Page) -> None:
    site.ready()
    run = site.start(input={"name": "Ada"})
    site.goto(page, f"/runs/{run['runId']}")
    status = page.locator("h1 .badge")
    expect(status).to_have_text("queued")

    site.claim(run)
    expect(status).to_have_text("running")
    expect(page.get_by_text(f"{run['targetRole']}@host").first).to_be_visible()
    site.append(run, 1, NewEvent("log", data={"level": "info", "message": "<img src=x onerror=alert(1)>\u2028é😀"}))
    site.finish(run, {"content": "Hello"})

    expect(status).to_have_text("completed")
    expect(page.locator("[data-type='log'] .text")).to_contain_text("<img src=x onerror=alert(1)>")
    expect(page.get_by_role("heading", name="Output")).to_be_visible()
    page.get_by_role("button", name="Run again").click()
    page.wait_for_url(lambda url: run["runId"] not in url)
    assert site.client.get(f"/api/v1/runs/{page.url.rpartition('/')[2]}").json["retryOf"] == run["runId"]


def test_a_run_that_redis_lost_is_shown_from_its_new_beginning(site: Site, page: Page) -> None:
    site.ready()
    run = site.start(input={"name": "Ada"})
    site.goto(page, f"/runs/{run['runId']}")
    site.claim(run)
    site.append(run, 1, NewEvent("log", data={"level": "info", "message": "before"}))
    expect(page.locator("[data-timeline] li")).to_have_count(3)

    site.lose(run)

    expect(page.locator("[data-timeline] li")).to_have_count(1)
    expect(page.locator("[data-timeline-state]")).to_contain_text("its story begins again")
    site.claim(run)
    site.finish(run)
    expect(page.locator("[data-timeline-state]")).to_have_text("Ended: completed. 3 events.")
    expect(page.locator("[data-timeline] .type")).to_have_text(["run.queued", "run.started", "run.completed"])


def test_a_run_is_cancelled_by_its_button(site: Site, page: Page) -> None:
    site.ready()
    run = site.start()
    site.goto(page, f"/runs/{run['runId']}")

    page.get_by_role("button", name="Cancel").click()

    expect(page.locator("h1 .badge")).to_have_text("cancelled")
    expect(page.locator("[data-timeline-state]")).to_contain_text("Ended: cancelled")


def test_eight_tabs_follow_one_run_and_pages_still_load(site: Site, context: BrowserContext) -> None:
    site.ready()
    run = site.start()
    tabs = [context.new_page() for _ in range(8)]
    for tab in tabs:
        tab.goto(f"{site.url}/runs/{run['runId']}", wait_until="domcontentloaded")
        expect(tab.locator("[data-timeline] li")).to_have_count(1)
    site.claim(run)
    site.finish(run)

    for tab in tabs:
        expect(tab.locator("[data-timeline-state]")).to_contain_text("Ended: completed")
        expect(tab.locator("[data-timeline] li")).to_have_count(3)


def test_a_worker_that_goes_and_comes_back_is_seen_without_a_reload(site: Site, page: Page) -> None:
    site.ready()
    site.goto(page, "/flows/deployments")
    canary = page.locator(".variants li", has_text="canary")
    expect(canary.locator(".chip")).to_have_class("chip up")

    site.services.register.leave("gpu-worker-1")
    expect(canary).to_contain_text("skipped: no role of it is healthy")
    expect(canary.locator(".chip")).to_contain_text("no workers")
    site.beat("gpu-worker")

    expect(canary).not_to_contain_text("skipped")


def test_draining_the_last_of_a_role_is_done_only_after_its_warning(site: Site, page: Page) -> None:
    site.ready()
    site.goto(page, "/workers")
    role = page.locator("section", has=page.get_by_role("heading", name="gpu-worker"))
    button = role.get_by_label("Drain role gpu-worker")

    button.click()
    expect(role).to_contain_text("nobody could run the variants 'canary' of 'hello'")
    assert site.services.register.drains() == []
    button.click()

    expect(role).to_contain_text("The whole role is drained")
    role.get_by_label("Undrain role gpu-worker").click()
    expect(role).not_to_contain_text("The whole role is drained")
    page.get_by_label("Drain worker worker@host").first.click()
    expect(page.get_by_label("Drain worker worker@host")).to_have_text("Drain all the same")


def test_a_deployment_is_made_with_roles_picked_from_the_living(site: Site, page: Page) -> None:
    site.ready()
    site.goto(page, "/flows/new-deployment")
    page.get_by_label("Id", exact=True).fill("greeter")
    page.get_by_label("Label").fill("main")
    page.get_by_label("Flow", exact=True).fill("greet")
    page.get_by_role("checkbox", name="gpu-worker healthy").check()
    page.get_by_role("checkbox", name="worker healthy", exact=True).check()
    page.get_by_role("button", name="Add a variant").click()
    second = page.locator("[data-variant]").nth(1)
    second.get_by_label("Label").fill("spare")
    second.get_by_label("Flow").fill("greet")
    second.get_by_label("Weight").fill("3")
    second.get_by_label("Another role").fill("night-shift")
    second.get_by_role("button", name="Add", exact=True).click()
    expect(second.get_by_text("this variant would be skipped")).to_be_visible()
    expect(second.locator("[data-share]")).to_have_text("75 %")

    page.get_by_role("button", name="Create").click()

    page.wait_for_url("**/flows/deployments/greeter")
    stored = site.client.get("/api/v1/deployments/greeter").json
    assert [(each["label"], each["weight"], each["targetRoles"]) for each in stored["variants"]] == [
        ("main", 1, ["gpu-worker", "worker"]),
        ("spare", 3, ["night-shift"]),
    ]
    expect(page.locator("[data-live='outlook']")).to_contain_text("spare is skipped")


def test_the_warning_of_a_dead_variant_follows_the_choice(site: Site, page: Page) -> None:
    site.ready()
    site.services.register.leave("gpu-worker-1")
    site.goto(page, "/flows/deployments/hello")
    canary = page.locator("[data-variant]").nth(1)
    warning = canary.get_by_text("this variant would be skipped")
    expect(warning).to_be_visible()

    canary.get_by_role("checkbox", name="worker healthy", exact=True).check()
    expect(warning).to_be_hidden()
    canary.get_by_role("checkbox", name="worker healthy", exact=True).uncheck()
    canary.get_by_role("checkbox", name="gpu-worker no workers").uncheck()

    expect(warning).to_be_hidden()


def test_what_the_server_refuses_is_said_beside_the_variant(site: Site, page: Page) -> None:
    site.ready()
    site.goto(page, "/flows/deployments/hello")
    canary = page.locator("[data-variant]").nth(1)
    canary.get_by_label("Another role").fill("GPU Worker")

    page.get_by_role("button", name="Save").click()

    expect(canary.locator("[data-faults]")).to_contain_text("'GPU Worker' is not a role")
    expect(page.get_by_text("Not saved.")).to_be_visible()
    assert site.client.get("/api/v1/deployments/hello").json["rev"] == 1


def test_two_people_do_not_overwrite_each_other(site: Site, page: Page) -> None:
    site.ready()
    site.goto(page, "/flows/deployments/hello")
    site.client.put("/api/v1/deployments/hello", json=CANARY | {"rev": 1, "description": "theirs"})
    page.get_by_label("Description").fill("mine")

    page.get_by_role("button", name="Save").click()

    expect(page.get_by_text("is at rev 2")).to_be_visible()
    assert site.client.get("/api/v1/deployments/hello").json["description"] == "theirs"


def test_saving_keeps_what_the_form_does_not_show(site: Site, page: Page) -> None:
    site.ready()
    body = {"variants": [CANARY["variants"][0] | {"labels": {"team": "blue"}}], "labels": {"tier": "1"}}
    site.deploy("kept", body | {"validation": "strict"})
    site.goto(page, "/flows/deployments/kept")
    page.get_by_label("Weight").fill("5")

    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("rev 2")).to_be_visible()

    stored = site.client.get("/api/v1/deployments/kept").json
    assert (stored["labels"], stored["validation"]) == ({"tier": "1"}, "strict")
    assert (stored["variants"][0]["labels"], stored["variants"][0]["weight"]) == ({"team": "blue"}, 5)


def test_a_page_says_when_redis_goes_and_when_it_is_back(
    site: Site, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.ready()
    site.goto(page, "/")
    banner = page.locator("[data-live='notices']")
    expect(banner).to_have_text("")

    with monkeypatch.context() as away:
        site.take_away("redis", away)
        expect(banner).to_contain_text("obody can say who is alive")
        expect(page.locator("[data-live='roles']")).to_contain_text("not known right now")

    expect(banner).not_to_contain_text("obody can say")
    expect(page.locator("[data-live='roles']")).to_contain_text("gpu-worker")


def test_a_page_says_when_the_admin_app_cannot_be_reached(site: Site, page: Page) -> None:
    site.ready()
    site.goto(page, "/")

    page.route("**/*", lambda route: route.abort())
    expect(page.locator("#stale")).to_contain_text("the admin app cannot be reached")
    page.unroute("**/*")

    expect(page.locator("#stale")).to_be_hidden()


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_pages_fit_the_screen_and_keep_to_their_policy(site: Site, browser: Browser, width: int, scheme: str) -> None:
    site.ready()
    run = site.finished(input={"text": "a" * 500})
    site.mirror()
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
    page, faults = context.new_page(), []
    page.on("console", lambda message: faults.append(message.text))
    paths = ["/", "/workers", "/flows/deployments", "/flows/deployments/hello", "/runs", f"/runs/{run['runId']}"]
    for path in [*paths, f"/?follow={run['runId']}", "/flows/new-deployment"]:
        site.goto(page, path)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    context.close()
    assert faults == []

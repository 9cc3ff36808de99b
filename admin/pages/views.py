"""The pages. Each asks its servers at once, waits for a bounded time, and says what it could not learn."""

from __future__ import annotations

from typing import Any, NamedTuple

from flask import Blueprint, render_template

from admin import fleet
from admin.api.runs import FILTERS, run_filter
from admin.inputs import Reader, query, some_text
from admin.pages import shapes
from admin.pages.gather import Answers, Question, gather
from admin.process import services
from app.clock import system_clock
from app.errors import Conflict, NoHealthyVariant
from app.models.names import DISPATCHER
from app.models.run import RunStatus
from app.ports import RunFilter
from app.roles import is_role_healthy
from app.wiring import Services

RECENT = 15
PAGE = 100
MAX_CHOICES = 500

# Together below the 5 s that a page may take: first what can be asked at once, then the queues of the roles.
FIRST_S, SECOND_S = 3.0, 1.5

blueprint = Blueprint("pages", __name__)


class Notice(NamedTuple):
    """Something that is out of order: what, and what follows from it or mends it."""

    text: str
    hint: str


class Outlook(NamedTuple):
    """What would happen to a run that started now: the explanation by label, or why there is none."""

    candidates: dict[str, dict[str, Any]]
    trouble: str = ""


@blueprint.get("/")
def overview() -> str:
    """Show roles, deployments and the last runs; ``?follow=<run>`` follows one of them."""
    asked, held = query(follow=some_text), services()
    first = _ask(
        held,
        deployments=lambda: held.catalog.deployments(limit=PAGE),
        runs=lambda: held.runs.list(RunFilter(), limit=RECENT),
    )
    return _page("overview.html", held, first, runs=first.get("runs"), follow=asked.get("follow"))


@blueprint.get("/workers")
def workers() -> str:
    """Show every living instance, by role."""
    query()
    held = services()
    first = _ask(
        held,
        instances=lambda: fleet.instances(held),
        drains=held.register.drains,
        deployments=lambda: held.catalog.deployments(limit=PAGE),
    )
    by_role: dict[str, list[Any]] = {}
    for instance in first.get("instances", ()):
        by_role.setdefault(instance.heartbeat.role, []).append(instance)
    drained = fleet.Drained.of(first.get("drains", ())).nodes
    return _page("workers.html", held, first, instances=by_role, drained_nodes=drained)


@blueprint.get("/flows/deployments")
def deployments() -> str:
    """List deployments with how the roles of their variants are."""
    after, held = query(after=some_text).get("after"), services()
    first = _ask(held, deployments=lambda: held.catalog.deployments(after=after, limit=PAGE))
    return _page("deployments.html", held, first)


@blueprint.get("/flows/new-deployment")
def new_deployment() -> str:
    """Make a deployment."""
    query()
    held = services()
    first = _ask(held, flows=lambda: held.catalog.flows(limit=MAX_CHOICES))
    return _page("deployment.html", held, first, deployment=None, flows=first.get("flows"))


@blueprint.get("/flows/deployments/<deployment_id>")
def deployment(deployment_id: str) -> str:
    """Show a deployment: what would happen to a run now, its variants to edit, its last runs."""
    query()
    held = services()
    first = _ask(
        held,
        deployment=lambda: held.catalog.deployment(deployment_id),
        flows=lambda: held.catalog.flows(limit=MAX_CHOICES),
        outlook=lambda: _outlook(held, deployment_id),
        runs=lambda: held.runs.list(RunFilter(deployment=deployment_id), limit=RECENT),
    )
    return _page(
        "deployment.html",
        held,
        first,
        deployment=first.need("deployment"),
        flows=first.get("flows"),
        outlook=first.get("outlook"),
        runs=first.get("runs"),
    )


@blueprint.get("/runs")
def runs() -> str:
    """List runs by any of the API's filters."""
    # A form sends its empty fields too.
    asked, held = query(**{name: _or_none(reader) for name, reader in FILTERS.items()}, after=some_text), services()
    first = _ask(held, runs=lambda: held.runs.list(run_filter(asked), after=asked.get("after"), limit=50))
    statuses = [each.value for each in RunStatus]
    return _page("runs.html", held, first, runs=first.get("runs"), asked=asked, statuses=statuses)


@blueprint.get("/runs/<run_id>")
def run(run_id: str) -> str:
    """Show a run and follow it."""
    query()
    held = services()
    first = _ask(held, run=lambda: held.runs.show(run_id))
    return _page("run.html", held, first, run=first.need("run"))


def _or_none(reader: Reader) -> Reader:
    return lambda text: reader(text) if text else None


def _ask(held: Services, **questions: Question) -> Answers:
    return gather(FIRST_S, register=lambda: fleet.known_snapshot(held), **questions)


def _page(template: str, held: Services, first: Answers, **shown: Any) -> str:
    """Render a page with what all of them show: roles, deployments in sight, and what is out of order."""
    page = first.get("deployments")
    in_sight = page.items if page else [each for each in (shown.get("deployment"),) if each]
    roles: dict[str, fleet.RoleRow] | None = None
    faults = [*first.faults.values()]
    if first.get("register"):
        names = shapes.pinned_roles(in_sight)
        second = gather(SECOND_S, roles=lambda: {row.role: row for row in fleet.roles(held, names)})
        roles = second.get("roles")
        faults += second.faults.values()
    notices = [Notice(text, _CONSEQUENCES.get(code, "")) for code, text in {f.code: f.message for f in faults}.items()]
    if roles is not None and not is_role_healthy(first.get("register").roles, DISPATCHER):
        notices.append(_NO_DISPATCHER)
    return render_template(
        template,
        roles=roles,
        deployments=page and [shapes.deployment_row(each, roles) for each in page.items],
        next_page=page and page.next,
        row=shown.get("deployment") and shapes.deployment_row(shown["deployment"], roles),
        choices=shapes.choices(shown.get("deployment"), roles),
        notices=notices,
        now_ms=system_clock(),
        **shown,
    )


_CONSEQUENCES = {
    "register_unknown": "New runs are refused until it is known again; what runs goes on.",
    "redis_unavailable": "New runs are refused until it is back; what runs goes on.",
    "mongo_unavailable": "Deployments and past runs cannot be shown, and new runs are refused, until it is back.",
}
_NO_DISPATCHER = Notice(
    "No dispatcher is alive.",
    "Runs still execute, but nobody records how they end. Start one: SERVICE_ROLE=dispatcher celery -A app worker",
)


def _outlook(held: Services, deployment_id: str) -> Outlook:
    try:
        explain, trouble = held.runs.resolve(deployment_id, {}).explain, ""
    except NoHealthyVariant as error:
        explain, trouble = error.explain, error.message
    except Conflict as error:
        return Outlook({}, error.message)
    return Outlook({candidate["label"]: candidate for candidate in explain["candidates"]}, trouble)

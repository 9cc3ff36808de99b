"""The documents of the API and of events say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from admin.app import create_app
from admin.problems import _HTTP_CODES
from app import errors
from app.models import event

PLACES = {
    "flow_id": "<id>",
    "deployment_id": "<id>",
    "run_id": "<id>",
    "version_id": "<versionId>",
    "before": "<a>",
    "after": "<b>",
    "path:key": "<key>",
    "instance": "<instance>",
    "role": "<role>",
}
MACHINES = ("/api/", "/admin/", "/healthz", "/readyz", "/metrics")


def test_every_call_is_documented_and_every_documented_call_is_there(repository: Path) -> None:
    app = create_app(lambda: None)  # type: ignore[arg-type, return-value]
    text = (repository / "docs" / "api.md").read_text("utf-8")
    written = set(re.findall(r"^\| `((?:GET|POST|PUT|DELETE) [^`?]+)", text, re.M))

    served = {
        f"{method} {re.sub(r'<([^>]+)>', lambda place: PLACES[place[1]], rule.rule)}"
        for rule in app.url_map.iter_rules()
        if rule.rule.startswith(MACHINES)
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }

    assert written == served


def test_every_code_of_a_problem_is_documented(repository: Path) -> None:
    text = (repository / "docs" / "api.md").read_text("utf-8")
    listed = re.findall(
        r"Codes: ([^.]+)\.", "\n".join(kind.__doc__ or "" for kind in vars(errors).values() if isinstance(kind, type))
    )
    said = {code for codes in listed for code in re.findall(r"``(\w+)``", codes)}
    raised = {
        kind.code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RolecallError)
    }
    # Roots that nothing raises, and what only ends a process or is not built yet.
    absent = {"error", "conflict", "not_found", "bad_setting"}

    missing = [code for code in (said | raised | set(_HTTP_CODES.values())) - absent if f"`{code}`" not in text]

    assert missing == []


def test_every_type_of_event_is_documented(repository: Path) -> None:
    text = (repository / "docs" / "events.md").read_text("utf-8")
    types = {value for name, value in vars(event).items() if name.isupper() and isinstance(value, str)}

    # A reset is no event of the log.
    assert set(re.findall(r"^\| `([a-z.]+)` \|", text, re.M)) == types - {event.RESET}
    assert f"event:{event.RESET}\n" in text

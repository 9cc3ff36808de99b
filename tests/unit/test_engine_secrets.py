"""Secrets by name: handlers get them, and nothing that a run tells has them."""

from __future__ import annotations

import json
from typing import Any

from app.nodes import HandlerError, Step
from app.nodes.secrets import secrets_from, variable_of
from tests.flows import Ran, document, node, registry, run

SECRET = 'hunter"2\\é'


def told(function: Any) -> Ran:
    source = document({"a": node("t/a")})
    return run(source, {}, registry(a=function), secrets=secrets_from({"ROLECALL_SECRET_SMTP_PASSWORD": SECRET}))


def everything(ran: Ran) -> str:
    return repr([ran.outcome, ran.events]) + json.dumps(ran.outcome.output, ensure_ascii=False)


def test_a_secret_is_an_environment_variable() -> None:
    assert variable_of("smtp.password") == variable_of("SMTP-Password") == "ROLECALL_SECRET_SMTP_PASSWORD"
    secret = secrets_from({"ROLECALL_SECRET_A": "1", "ROLECALL_SECRET_B": "", "A": "2"})
    assert [secret(name) for name in ("a", "b", "c")] == ["1", None, None]


def test_a_secret_that_is_not_there_names_what_to_set() -> None:
    error = told(lambda step: {"x": step.secret("api-key")}).outcome.error
    assert error is not None
    assert (error.code, error.message) == (
        "PERMANENT", "this worker has no secret 'api-key'; set ROLECALL_SECRET_API_KEY where it runs"
    )  # fmt: skip


def test_a_secret_is_blotted_out_of_outputs_and_events() -> None:
    def careless(step: Step) -> dict[str, Any]:
        secret = step.secret("smtp.password")
        step.log(f"using {secret}")
        step.token(secret)
        return {"header": f"Basic {secret}", "length": len(secret)}

    ran = told(careless)
    assert ran.outcome.output == {"header": "Basic [secret]", "length": len(SECRET)}
    assert "using [secret]" in ran.logs
    assert "hunter" not in everything(ran)


def test_a_secret_is_blotted_out_of_errors_before_they_are_cut() -> None:
    def fail(step: Step) -> None:
        raise HandlerError("x" * 1_995 + step.secret("smtp.password"))

    error = told(fail).outcome.error
    assert error is not None
    assert error.message == "x" * 1_995 + "[secr"

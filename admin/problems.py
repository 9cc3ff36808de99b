"""Errors as answers: one table of statuses, RFC 9457 ``application/problem+json`` for programs, a page for people."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from flask import Flask, Response, current_app, render_template, request
from werkzeug.exceptions import HTTPException

from app import errors

PROBLEM_TYPE = "urn:rolecall:problem:"
MACHINE_PATHS = ("/api/", "/admin/", "/healthz", "/readyz", "/metrics")
"""Where errors are JSON; everything else is a page."""

STATUSES: dict[type[errors.RolecallError], tuple[int, str]] = {
    errors.BadRequest: (400, "The request cannot work as it is"),
    errors.NotFound: (404, "There is no such thing"),
    errors.Conflict: (409, "The state of things is against it"),
    errors.IdempotencyMismatch: (422, "The idempotency key belongs to another request"),
    errors.TooManyQueued: (429, "Too many runs are waiting"),
    errors.Unavailable: (503, "It cannot be done right now"),
    errors.RolecallError: (500, "Something went wrong in Rolecall"),
}
"""The one table of error classes, their statuses and titles; a class has those of its nearest ancestor here."""

_HTTP_CODES = {
    400: "bad_request",
    403: "forbidden",
    404: "no_such_page",
    405: "method_not_allowed",
    406: "not_acceptable",
    413: "too_large",
    415: "unsupported_media_type",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """An error ready to be shown. ``extra`` are further members of the JSON object."""

    status: int
    code: str
    title: str
    detail: str
    extra: dict[str, Any]
    headers: dict[str, str]

    def to_wire(self) -> dict[str, Any]:
        return {
            "type": PROBLEM_TYPE + self.code,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
        } | self.extra


def problem_of(error: Exception) -> Problem:
    """Say an error as HTTP does. Of an error that nobody expected nothing is told but that it happened."""
    if isinstance(error, errors.RolecallError):
        status, title = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
        retry_after = getattr(error, "retry_after", None)
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        return Problem(status, error.code, title, error.message, error.extra(), headers)
    if isinstance(error, HTTPException):
        status = error.code or 500
        allow = getattr(error, "valid_methods", None)
        headers = {"Allow": ", ".join(allow)} if allow else {}
        code, title = _HTTP_CODES.get(status, f"http_{status}"), HTTPStatus(status).phrase
        return Problem(status, code, title, error.description or title, {}, headers)
    detail = "Rolecall met an error that it did not expect; the admin app's log has it."
    return Problem(500, "internal", HTTPStatus.INTERNAL_SERVER_ERROR.phrase, detail, {}, {})


def answer(problem: Problem) -> Response:
    """Show a problem: as JSON under the paths made for programs, else as a page."""
    if request.path.startswith(MACHINE_PATHS):
        body, kind = json.dumps(problem.to_wire()), "application/problem+json"
    else:
        body, kind = render_template("problem.html", problem=problem), "text/html"
    response = Response(body, problem.status, problem.headers, content_type=kind)
    response.headers.setdefault("Cache-Control", "no-store")
    return response


def install(app: Flask) -> None:
    """Answer every error of ``app`` this way."""

    def on_known(error: errors.RolecallError) -> Response:
        problem = problem_of(error)
        if problem.status == 500:
            current_app.logger.error("%s %s: %s", request.method, request.path, error)
        return answer(problem)

    def on_http(error: HTTPException) -> Response | HTTPException:
        if error.code is None or error.code < 400:
            return error
        return answer(problem_of(error))

    def on_unexpected(error: Exception) -> Response:
        current_app.logger.error("%s %s failed", request.method, request.path, exc_info=error)
        return answer(problem_of(error))

    app.register_error_handler(errors.RolecallError, on_known)
    app.register_error_handler(HTTPException, on_http)
    app.register_error_handler(Exception, on_unexpected)

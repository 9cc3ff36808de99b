"""The admin app's factory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from flask import Flask, Response, request
from flask.json.provider import JSONProvider

from admin import api, pages, problems
from admin.inputs import BODY_SLACK_BYTES, refuse_cross_origin
from admin.process import KEY, Process, process
from app.wiring import Services

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)


class OrjsonProvider(JSONProvider):
    """JSON as everywhere in Rolecall."""

    def dumps(self, obj: Any, **_: Any) -> str:
        return orjson.dumps(obj).decode()

    def loads(self, s: str | bytes, **_: Any) -> Any:
        return orjson.loads(s)


def create_app(factory: Callable[[], Services]) -> Flask:
    """Make the app. ``factory`` builds the process's services when they are first needed, so after any fork."""
    app = Flask(__name__)
    app.json = OrjsonProvider(app)
    app.url_map.strict_slashes = False
    app.extensions[KEY] = Process(factory)
    app.before_request(_guard)
    app.after_request(_harden)
    problems.install(app)
    api.install(app)
    pages.install(app)
    return app


def _guard() -> None:
    refuse_cross_origin()
    if request.method in ("POST", "PUT"):
        request.max_content_length = process().services.settings.input_max_bytes + BODY_SLACK_BYTES


def _harden(response: Response) -> Response:
    response.headers.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    response.headers.setdefault("Referrer-Policy", "same-origin")
    return response

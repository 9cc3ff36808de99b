"""What a request carries, read strictly: JSON bodies and query parameters. A refusal names the place and the mend."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from flask import request
from werkzeug.exceptions import Forbidden, UnsupportedMediaType

from app.errors import BadRequest, Fault
from app.models.json_value import find_fault

JSON = "application/json"
YAML = ("application/yaml", "application/x-yaml", "text/yaml")

BODY_SLACK_BYTES = 65_536
"""What a body may have beside the largest input: meta, keys, spaces."""


# --- bodies ------------------------------------------------------------------------------------------------------


def json_object(*, optional: bool = False) -> dict[str, Any]:
    """Return the request's JSON object; an absent body is ``{}`` if it is ``optional``.

    Raises:
        UnsupportedMediaType: the body is not declared as JSON.
        BadRequest: it is no JSON, repeats a key, has what cannot travel as JSON unchanged, or is no object.
    """
    body = raw_body(JSON, optional=optional)
    if not body and optional:
        return {}
    value = parse_json(body)
    if not isinstance(value, dict):
        raise BadRequest("the body must be a JSON object, for example {}")
    return value


def forced() -> bool:
    """Return what an optional body of ``{"force"}`` alone says; without one it is false.

    Raises:
        BadRequest: it has another field, or ``force`` is neither true nor false.
    """
    body = json_object(optional=True)
    force = body.pop("force", False)
    faults = [Fault(f"/{name}", "is not a field here; there is: force") for name in body]
    if not isinstance(force, bool):
        faults.append(Fault("/force", "must be true or false"))
    if faults:
        raise BadRequest.of(faults)
    return bool(force)


def raw_body(*media_types: str, optional: bool = False) -> bytes:
    """Return the request's body, which must be declared as one of ``media_types``."""
    if optional and not request.mimetype and not request.content_length:
        return b""
    if request.mimetype not in media_types:
        given = f"not {request.mimetype}" if request.mimetype else "and the request has none"
        raise UnsupportedMediaType(f"Content-Type must be {' or '.join(media_types)}, {given}")
    return request.get_data(cache=False)


def parse_json(body: bytes) -> Any:
    """Read JSON as RFC 8259 has it.

    Raises:
        BadRequest: naming line and column, the repeated key, or the place of the value that would not survive.
    """
    try:
        value = json.loads(body.decode(), object_pairs_hook=_no_key_twice, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8: byte {error.start} cannot be read") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise BadRequest(f"the body is not JSON: {error.msg} at {place}") from None
    except RecursionError:
        raise BadRequest("the body is nested too deep") from None
    except ValueError as error:
        raise BadRequest(f"the body is not usable JSON: {error}") from None
    fault = find_fault(value)
    if fault is not None:
        raise BadRequest.of([fault])
    return value


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"an object has the key {twice!r} twice")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number; send null or a string")


def refuse_cross_origin() -> None:
    """Refuse a change that a browser sends for a page of another origin.

    Browsers say where a request comes from (``Sec-Fetch-Site``, or ``Origin`` in older ones); other clients do not.
    """
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is not None:
        foreign = site not in ("same-origin", "none")
    else:
        foreign = origin is not None and origin.partition("://")[2] != request.host
    if foreign:
        raise Forbidden("changes are taken only from Rolecall's own pages and from programs, not from other sites")


# --- query parameters --------------------------------------------------------------------------------------------

Reader = Callable[[str], Any]


def query(**readers: Reader) -> dict[str, Any]:
    """Return the query parameters that were sent, each read by the reader of its name.

    Raises:
        BadRequest: naming every parameter that is unknown, repeated or wrong.
    """
    faults: list[Fault] = []
    values: dict[str, Any] = {}
    for name, given in request.args.lists():
        if name not in readers:
            known = ", ".join(readers) or "none"
            faults.append(Fault(f"?{name[:80]}", f"is not a parameter here; there are: {known}"))
        elif len(given) > 1:
            faults.append(Fault(f"?{name}", "must be sent once"))
        else:
            try:
                values[name] = readers[name](given[0])
            except ValueError as error:
                faults.append(Fault(f"?{name}", str(error)))
    if faults:
        raise BadRequest.of(faults)
    return values


def whole(least: int, most: int) -> Reader:
    """Read a whole number between two bounds."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 18 and least <= int(text) <= most):
            raise ValueError(f"must be a whole number from {least} to {most}, not {text[:40]!r}")
        return int(text)

    return read


def seconds(most: float) -> Reader:
    """Read a number of seconds, fractions allowed."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= most:
            raise ValueError(f"must be seconds from 0 to {most:g}, not {text[:40]!r}")
        return value

    return read


def one_of(choices: Iterable[str]) -> Reader:
    """Read one of some words."""
    words = tuple(choices)

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be one of {', '.join(words)}, not {text[:40]!r}")
        return text

    return read


def flag(text: str) -> bool:
    """Read ``true`` or ``false``."""
    return bool(one_of(("true", "false"))(text) == "true")


def some_text(text: str) -> str:
    """Read any text but the empty one."""
    if not text:
        raise ValueError("must not be empty; leave it out to mean any")
    return text

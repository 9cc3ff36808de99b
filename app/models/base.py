"""Shared habits of the boundary models: strict types, camelCase on the wire, faults with a place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from app.errors import BadRequest, Fault


class Request(BaseModel):
    """What a caller sends: strict, camelCase, and an unknown field is refused by name."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False
    )


class Stored(BaseModel):
    """What Rolecall wrote itself, maybe a newer version of it: unknown fields are ignored."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False
    )

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object that goes over the wire and into the store."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


M = TypeVar("M", bound=BaseModel)


def parse(model: type[M], value: Any, *, at: str = "") -> M:
    """Validate ``value`` as ``model``; ``at`` is the JSON pointer of ``value`` in what the caller sent.

    Raises:
        BadRequest: with one :class:`~app.errors.Fault` for each wrong field.
    """
    if not isinstance(value, Mapping):
        raise BadRequest.of([Fault(at, f"must be an object, not {_kind(value)}")])
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise BadRequest.of(faults_of(error, at=at)) from None


def faults_of(error: ValidationError, *, at: str = "") -> list[Fault]:
    """Turn pydantic's report into places and plain words."""
    return [Fault(_pointer(at, item["loc"]), _plain(dict(item))) for item in error.errors(include_url=False)]


def _pointer(at: str, loc: tuple[int | str, ...]) -> str:
    return at + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in loc)


def _kind(value: Any) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _plain(item: dict[str, Any]) -> str:
    given, context = item.get("input"), item.get("ctx", {})
    match item["type"]:
        case "extra_forbidden":
            return "is not a field here; remove it or check its spelling"
        case "missing":
            return "is required"
        case "int_type" | "string_type" | "bool_type" | "list_type" | "tuple_type" | "dict_type" | "model_type":
            wanted = {"int": "a whole number", "string": "a string", "bool": "true or false", "list": "a list"}
            kind = item["type"].removesuffix("_type")
            return f"must be {wanted.get(kind, 'an object' if kind != 'tuple' else 'a list')}, not {_kind(given)}"
        case "literal_error":
            return f"must be {context['expected']}, not {given!r}"
        case "value_error":
            return str(context["error"])
        case _:
            message: str = item["msg"]
            return message[0].lower() + message[1:]

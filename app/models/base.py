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
        return model.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        raise BadRequest.of(faults_of(error, at=at)) from None


def faults_of(error: ValidationError, *, at: str = "") -> list[Fault]:
    """Turn pydantic's report into places and plain words."""
    items = error.errors(include_url=False)
    # A list without its faulty items also counts as too short.
    inside = {item["loc"][:depth] for item in items for depth in range(len(item["loc"]))}
    return [
        Fault(_pointer(at, item["loc"]), plain_fault(dict(item)))
        for item in items
        if item["type"] != "too_short" or item["loc"] not in inside
    ]


def _pointer(at: str, loc: tuple[int | str, ...]) -> str:
    return at + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in loc)


def _kind(value: Any) -> str:
    if type(value) is float:
        return repr(value)
    names = {bool: "a boolean", int: "a number", str: "a string", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _number(value: float) -> str:
    return f"{int(value) if value == int(value) else value:,}"


def _many(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def plain_fault(item: dict[str, Any]) -> str:
    """Return what is wrong and what would be right, for one of :meth:`pydantic.ValidationError.errors`."""
    given, context = item.get("input"), item.get("ctx", {})
    match item["type"]:
        case "extra_forbidden":
            return "is not a field here; remove it or check its spelling"
        case "missing":
            return "is required"
        case "int_type" | "string_type" | "bool_type" | "list_type" | "tuple_type" | "dict_type" | "model_type":
            return f"must be {_WANTED[item['type']]}, not {_kind(given)}"
        case "int_parsing" | "int_parsing_size":
            return f"must be a whole number, not {_show(given)}"
        case "float_parsing" | "finite_number":
            return f"must be a finite number, not {_show(given)}"
        case "greater_than_equal":
            return f"must be at least {_number(context['ge'])}, not {_show(given)}"
        case "less_than_equal":
            return f"must be at most {_number(context['le'])}, not {_show(given)}"
        case "greater_than":
            return f"must be more than {_number(context['gt'])}, not {_show(given)}"
        case "too_short":
            return f"must have at least {_many(context['min_length'], 'item')}, not {context['actual_length']}"
        case "too_long":
            return f"must have at most {_many(context['max_length'], 'item')}, not {context['actual_length']}"
        case "string_too_short":
            return f"must have at least {_many(context['min_length'], 'character')}, not {len(str(given))}"
        case "string_too_long":
            return f"must have at most {_many(context['max_length'], 'character')}, not {len(str(given))}"
        case "string_unicode":
            return "has a lone surrogate, which is no character"
        case "literal_error":
            return f"must be {context['expected']}, not {_show(given)}"
        case "value_error":
            return str(context["error"])
        case _:
            message: str = item["msg"]
            return message[0].lower() + message[1:]


_WANTED = {
    "int_type": "a whole number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
}

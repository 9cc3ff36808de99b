"""Packets: what an edge says of the data that travels over it, as JSON Schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

DOCUMENT_URI = "urn:flowdsl:document"
MAX_TEXT = 300


class Packet:
    """One declared shape of data. Two edges declare the same packet when ``name`` is equal."""

    __slots__ = ("_validator", "name")

    def __init__(self, name: str, validator: Validator) -> None:
        self.name = name
        self._validator = validator

    def mismatch(self, value: Any) -> str | None:
        """Return in words why ``value`` is not such a packet, or ``None`` if it is."""
        try:
            error = next(iter(self._validator.iter_errors(value)), None)
        except (RecursionError, Unresolvable) as failure:
            return f"the schema of {self.name} cannot be applied: {type(failure).__name__}"
        if error is None:
            return None
        place = "".join(f"/{part}" for part in error.absolute_path)
        return f"not a {self.name}: {place or 'it'}: {error.message[:MAX_TEXT]}"


class PacketReader:
    """Makes the packets of one document; a ``$ref`` inside a schema may point anywhere in the document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        resource: Resource[Any] = DRAFT202012.create_resource(dict(document))
        # A registry of our own: nothing outside the document is ever fetched.
        self._registry: Registry[Any] = Registry().with_resource(DOCUMENT_URI, resource)

    def read(self, name: str, schema: dict[str, Any], pointer: str) -> Packet:
        """Make the packet whose schema stands at ``pointer`` of the document.

        Raises:
            ValueError: it is no JSON Schema; the text says why.
        """
        kind = validator_for(schema, default=Draft202012Validator)
        try:
            kind.check_schema(schema)
        except SchemaError as error:
            raise ValueError(f"is no JSON Schema: {error.message[:MAX_TEXT]}") from None
        # Only a schema that refers to others needs to be found by its place, which costs as much as checking it.
        placed = {"$ref": f"{DOCUMENT_URI}#{pointer}"} if "$ref" in _keywords(schema) else schema
        return Packet(name, kind(placed, registry=self._registry))


def _keywords(schema: Any) -> Iterator[str]:
    """Yield every key in a schema, at any depth."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            yield key
            yield from _keywords(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _keywords(value)

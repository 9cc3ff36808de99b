"""Following ``$ref`` inside one document. Nothing outside the document is ever fetched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.errors import Fault
from app.flowdsl.reading import escape

MAX_CHAIN: Final = 10


class BadReference(Exception):
    """A ``$ref`` that leads nowhere."""

    def __init__(self, at: str, message: str, mend: str | None = None) -> None:
        super().__init__(message)
        self.fault = Fault(at, message, mend)


class References:
    """Looks up places of one document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def resolve(self, value: Any, at: str) -> tuple[Any, str]:
        """Return ``value`` behind any ``$ref``, and where it stands. Fields beside the ``$ref`` override.

        Raises:
            BadReference: it leads nowhere, outside of the document, or round in a circle.
        """
        beside: dict[str, Any] = {}
        place = at
        for _ in range(MAX_CHAIN):
            if not isinstance(value, dict) or "$ref" not in value:
                overridden = beside and isinstance(value, dict)
                return (value | beside, at) if overridden else (value, place)
            beside = {key: item for key, item in value.items() if key != "$ref"} | beside
            value, place = self._look_up(value["$ref"], f"{place}/$ref")
        raise BadReference(at, "the $ref leads round in a circle")

    def packet(self, value: Any, at: str) -> tuple[str, dict[str, Any], str] | Fault:
        """Return name, schema and pointer of a packet, or a warning where it cannot be checked here."""
        if isinstance(value, str):
            return self._named_packet(value, at)
        if not isinstance(value, dict):
            mend = "name one, like '#/components/packets/Order'"
            return Fault.warning(at, "must name a packet; it is not checked", mend)
        if isinstance(value.get("$ref"), str):
            return self._named_packet(value["$ref"], f"{at}/$ref")
        if isinstance(value.get("schema"), dict):
            return _inline(value["schema"], f"{at}/schema")
        return _inline(value, at)

    def _named_packet(self, name: str, at: str) -> tuple[str, dict[str, Any], str] | Fault:
        if name.startswith("#"):
            schema, place = self._look_up(name, at)
        elif "#" in name or "://" in name:
            message = f"{name!r} is in another document, which is not read; its packets are not checked"
            return Fault.warning(at, message, "copy it into components/packets of this one")
        else:
            found = self._component(name)
            if found is None:
                mend = "add it to components/packets, or name one that is there"
                return Fault.warning(at, f"no packet or event is called {name!r}; it is not checked", mend)
            schema, place = found
        if not isinstance(schema, dict):
            raise BadReference(at, f"{name!r} is no schema")
        if place.startswith("/components/events/"):
            inner = self.packet(schema.get("payload"), f"{place}/payload")
            return inner if isinstance(inner, Fault) else (place.rpartition("/")[2], *inner[1:])
        return place.rpartition("/")[2], schema, place

    def _component(self, name: str) -> tuple[Any, str] | None:
        components = self._document.get("components")
        for group in ("packets", "events"):
            named = components.get(group) if isinstance(components, dict) else None
            if isinstance(named, dict) and name in named:
                return named[name], f"/components/{group}/{escape(name)}"
        return None

    def _look_up(self, ref: Any, at: str) -> tuple[Any, str]:
        if not isinstance(ref, str) or not ref.startswith("#/"):
            raise BadReference(at, f"{ref!r} leads out of the document", "use a place in it, like '#/components/...'")
        value: Any = self._document
        for part in ref[2:].split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and key in value:
                value = value[key]
            elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
                value = value[int(key)]
            else:
                raise BadReference(at, f"{ref!r} leads nowhere: there is no {part!r}")
        return value, ref[1:]


def _inline(schema: dict[str, Any], at: str) -> tuple[str, dict[str, Any], str]:
    return f"packet of {at}", schema, at

"""What is different between two versions of a flow, place by place.

Objects are compared field by field and lists item by item, except for a flow's edges: these are paired by the nodes
that they connect, so that one inserted edge is one change and not a change of all that follow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, Literal

from app.flowdsl.reading import escape

Kind = Literal["added", "removed", "changed", "moved"]
What = Literal["node", "edge", "setting", "flow", "component", "document"]


class _Nothing:
    """Stands for a field that is not there, which is not the same as ``null``."""


_NOTHING: Final = _Nothing()


@dataclass(frozen=True, slots=True)
class Change:
    """One difference.

    ``at`` is a JSON pointer into the new document, of something that was removed where it would be; only an edge that
    was removed is named by its place in the old one. ``moved``: edges are written in another order, which is that in
    which they are followed; it has no values.
    """

    at: str
    kind: Kind
    what: What
    before: Any = _NOTHING
    after: Any = _NOTHING

    def to_wire(self) -> dict[str, Any]:
        values = {"before": self.before, "after": self.after}
        return {"at": self.at, "change": self.kind, "what": self.what} | {
            name: value for name, value in values.items() if value is not _NOTHING
        }


def diff(before: Mapping[str, Any], after: Mapping[str, Any], flow_name: str) -> list[Change]:
    """Return the changes from one document to another, ``flow_name`` being the flow in question.

    ``what`` tells its nodes, the settings of these, and its edges from the rest of it, from the components, which it
    may refer to, and from the rest of the document, other flows included. Empty only if both mean the same.
    """
    return list(_Differ(f"/flows/{escape(flow_name)}").compare(before, after, ""))


class _Differ:
    def __init__(self, flow_at: str) -> None:
        self._flow_at = flow_at

    def compare(self, before: Any, after: Any, at: str) -> Iterator[Change]:
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from self._objects(before, after, at)
        elif isinstance(before, list) and isinstance(after, list):
            yield from self._edges(before, after, at) if _are_edges(at) else self._lists(before, after, at)
        elif before is _NOTHING:
            yield self._change(at, "added", after=after)
        elif after is _NOTHING:
            yield self._change(at, "removed", before=before)
        elif type(before) is not type(after) or before != after:  # 1, 1.0 and true are not the same JSON
            yield self._change(at, "changed", before=before, after=after)

    def _objects(self, before: Mapping[str, Any], after: Mapping[str, Any], at: str) -> Iterator[Change]:
        for key in [*before, *(key for key in after if key not in before)]:
            yield from self.compare(before.get(key, _NOTHING), after.get(key, _NOTHING), f"{at}/{escape(key)}")

    def _lists(self, before: list[Any], after: list[Any], at: str) -> Iterator[Change]:
        for index, (old, new) in enumerate(zip_longest(before, after, fillvalue=_NOTHING)):
            yield from self.compare(old, new, f"{at}/{index}")

    def _edges(self, before: list[Any], after: list[Any], at: str) -> Iterator[Change]:
        old, new = _by_ends(before), _by_ends(after)
        for ends, index in old.items():
            if ends not in new:
                yield self._change(f"{at}/{index}", "removed", before=before[index])
        for ends, index in new.items():
            if ends in old:
                yield from self.compare(before[old[ends]], after[index], f"{at}/{index}")
            else:
                yield self._change(f"{at}/{index}", "added", after=after[index])
        if [ends for ends in old if ends in new] != [ends for ends in new if ends in old]:
            yield self._change(at, "moved")

    def _change(self, at: str, kind: Kind, *, before: Any = _NOTHING, after: Any = _NOTHING) -> Change:
        return Change(at, kind, self._what(at), before, after)

    def _what(self, at: str) -> What:
        steps = at.removeprefix(self._flow_at).split("/")
        if not at.startswith(f"{self._flow_at}/"):
            return (
                "flow" if at == self._flow_at else "component" if at.split("/")[1:2] == ["components"] else "document"
            )
        match steps[1:]:
            case ["nodes", _, "settings", *_]:
                return "setting"
            case ["nodes", *_]:
                return "node"
            case ["edges", *_]:
                return "edge"
            case _:
                return "flow"


def _are_edges(at: str) -> bool:
    match at.split("/"):
        case ["", "flows", _, "edges"]:
            return True
        case _:
            return False


def _by_ends(edges: list[Any]) -> dict[tuple[str, str, int], int]:
    """Return where each edge is, by what it connects; several between the same ends are counted."""
    places: dict[tuple[str, str, int], int] = {}
    seen: dict[tuple[str, str], int] = {}
    for index, edge in enumerate(edges):
        ends = (str(edge.get("from")), str(edge.get("to"))) if isinstance(edge, dict) else ("", "")
        seen[ends] = number = seen.get(ends, 0) + 1
        places[(*ends, number)] = index
    return places

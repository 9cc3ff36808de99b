"""What a measure hands back, how it is judged, and the table that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

HEAD = ("", "what", "ours", "peer", "ratio", "spread", "bound", "holds")


@dataclass(frozen=True, slots=True)
class Bound:
    """What the median must keep to: the ratio to the peer, or our own value where there is no peer."""

    side: Literal["<=", ">="]
    limit: float

    def holds(self, value: float) -> bool:
        return value <= self.limit if self.side == "<=" else value >= self.limit


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a value of ours for each pass, and the peer's of the same pass beside it.

    ``unit`` is that of ``ours`` and ``peer``. Without a peer the bound is about ``ours``; without a bound the row only
    informs.
    """

    what: str
    unit: str
    ours: Sequence[float]
    peer: Sequence[float] = ()
    bound: Bound | None = None

    @property
    def judged(self) -> list[float]:
        """What the bound is about, one value for each pass."""
        if not self.peer:
            return list(self.ours)
        return [ours / peer for ours, peer in zip(self.ours, self.peer, strict=True)]

    @property
    def holds(self) -> bool:
        return self.bound is None or self.bound.holds(median(self.judged))

    def cells(self) -> tuple[str, ...]:
        judged = self.judged

        def places(value: float) -> str:
            return f"{value:.2f}x" if self.peer else self._text(value)

        return (
            self.what,
            self._text(median(self.ours)),
            self._text(median(self.peer)) if self.peer else "-",
            places(median(judged)) if self.peer else "-",
            f"{places(min(judged))} .. {places(max(judged))}",
            "-" if self.bound is None else f"{self.bound.side} {places(self.bound.limit)}",
            "-" if self.bound is None else "yes" if self.holds else "NO",
        )

    def _text(self, value: float) -> str:
        return f"{value:,.0f} {self.unit}" if value >= 100 else f"{value:.3g} {self.unit}"


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which about ``share`` of the values lie (0.5: the median)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def table(rows: Iterable[tuple[str, Row]]) -> str:
    """Write rows, each with the letter of its measure, as a Markdown table."""
    lines = [HEAD, *((letter, *row.cells()) for letter, row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    shown = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    shown.insert(1, " | ".join("-" * max(3, width) for width in widths))
    return "\n".join(f"| {line} |" for line in shown)


def interleaved(pairs: int, *sides: Callable[[], float]) -> list[list[float]]:
    """Take each side's value in turn, ``pairs`` times, so that noise hits all of them; return the values by side."""
    taken: list[list[float]] = [[] for _ in sides]
    for _ in range(pairs):
        for values, side in zip(taken, sides, strict=True):
            values.append(side())
    return taken

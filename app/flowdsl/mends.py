"""What somebody who wrote a name wrong probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

MAX_GUESSES: Final = 20
MAX_NAMES: Final = 1_000
MAX_LENGTH: Final = 128


class Guesser:
    """Guesses for the first wrong names of a document: comparing texts is slow, and nobody reads a hundred guesses."""

    def __init__(self) -> None:
        self._left = MAX_GUESSES

    def mend(self, name: str, names: Iterable[str]) -> str | None:
        """Return as a mend the one of ``names`` that is most like ``name``, if any is like it."""
        if self._left == 0 or len(name) > MAX_LENGTH:
            return None
        self._left -= 1
        known = sorted(known for known in names if len(known) <= MAX_LENGTH)[:MAX_NAMES]
        close = get_close_matches(name, known, n=1, cutoff=0.7)
        return f"did you mean {close[0]!r}?" if close else None

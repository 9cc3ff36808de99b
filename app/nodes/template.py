"""Templates: text with ``{{ a.b }}`` or ``{{.a.b}}`` in it. Paths only; nothing is evaluated."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from app.models.json_value import dumps
from app.nodes.paths import MISSING, get

_PLACE: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_PATH: Final = re.compile(r"\.|\.?[^\s.{}()|\"'`]+(\.[^\s.{}()|\"'`]+)*")
MAX_LENGTH: Final = 100_000


class Template:
    """A template, read once. Rendering never fails: what is missing is empty text."""

    __slots__ = ("_parts", "text")

    def __init__(self, text: str) -> None:
        """Read ``text``.

        Raises:
            ValueError: it is too long, or something in braces is no path; the message names it.
        """
        if len(text) > MAX_LENGTH:
            raise ValueError(f"is {len(text):,} characters long and may have {MAX_LENGTH:,}")
        self.text = text
        # Text and paths take turns: re.split puts what the group caught between what lies around it.
        self._parts = [part if index % 2 == 0 else _path(part) for index, part in enumerate(_PLACE.split(text))]

    @staticmethod
    @lru_cache(maxsize=512)
    def read(text: str) -> Template:
        """Return the template of ``text``, read before or now."""
        return Template(text)

    def render(self, root: Any) -> str:
        """Return the text for a packet. Text goes in as it is, anything else as JSON, null as empty text."""
        parts = self._parts
        if len(parts) == 1:
            return parts[0]
        return "".join(part if index % 2 == 0 else _text(get(root, part)) for index, part in enumerate(parts))


def _path(text: str) -> str:
    inner = text.strip()
    if not _PATH.fullmatch(inner):
        raise ValueError(f"has {{{{{text}}}}}, but only paths like {{{{ user.name }}}} are known")
    return inner.removeprefix(".")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None or value is MISSING else dumps(value)


def _validate(value: Any) -> Any:
    return Template.read(value) if isinstance(value, str) else value


TemplateText = Annotated[Template, BeforeValidator(_validate)]
"""A settings field that holds a template."""

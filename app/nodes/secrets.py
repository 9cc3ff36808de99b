"""Secrets of handlers, by name. They come from the worker's environment and are kept out of everything that is told."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

PREFIX: Final = "ROLECALL_SECRET_"


def variable_of(name: str) -> str:
    """Return the environment variable of a secret: ``smtp.password`` is ``ROLECALL_SECRET_SMTP_PASSWORD``."""
    return PREFIX + re.sub(r"[^A-Za-z0-9]", "_", name).upper()


def secrets_from(environment: Mapping[str, str]) -> Callable[[str], str | None]:
    """Return a function from names to secrets, as the environment is now. An empty variable counts as none."""
    known = {variable: value for variable, value in environment.items() if variable.startswith(PREFIX) and value}
    return lambda name: known.get(variable_of(name))

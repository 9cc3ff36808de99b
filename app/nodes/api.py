"""How a function becomes a handler, and how it says what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from app.errors import Fault, RolecallError
from app.models.base import faults_of

MARK: Final = "__rolecall_handlers__"
F = TypeVar("F", bound=Callable[..., Any])


class Code(StrEnum):
    """What kind of failure it is; a flow's ``retryOn`` names these."""

    TIMEOUT = "TIMEOUT"
    RATE_LIMITED = "RATE_LIMITED"
    TEMPORARY = "TEMPORARY"
    NETWORK_ERROR = "NETWORK_ERROR"
    VALIDATION = "VALIDATION"
    """The packet or the settings are wrong; never retried."""
    PERMANENT = "PERMANENT"
    """It cannot work; never retried."""


class HandlerError(RolecallError):
    """A handler's own word for why it failed: ``raise HandlerError("too many requests", code="RATE_LIMITED")``."""

    code = Code.PERMANENT

    def __init__(self, message: str, *, code: str = Code.PERMANENT) -> None:
        super().__init__(message, code=str(code))


class HandlerSettings(BaseModel):
    """A base for settings models: strict, camelCase in documents, unknown fields refused by name."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False,
        arbitrary_types_allowed=True,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """A registered function. ``ref`` is the name that flows use and that workers announce."""

    ref: str
    function: Callable[..., Any]
    settings: type[BaseModel] | None = None
    gathers: bool = False
    """It is called once each incoming edge has brought a packet, with an object of these by their nodes' names."""

    @property
    def origin(self) -> str:
        """Where the function is written, for messages."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    def read_settings(self, raw: Mapping[str, Any], at: str = "") -> tuple[Any, list[Fault]]:
        """Return a node's settings as the handler's model (or as they are), and what is wrong with them."""
        if self.settings is None:
            return dict(raw), []
        try:
            return self.settings.model_validate(dict(raw)), []
        except ValidationError as error:
            return None, faults_of(error, at=at)


def handler(ref: str, *, settings: type[BaseModel] | None = None, gathers: bool = False) -> Callable[[F], F]:
    """Register the decorated function as the handler ``company/name``. It stays an ordinary function.

    ``settings`` is a pydantic model of the node's settings: a flow with wrong ones is refused at import, and
    ``step.settings`` is an instance of it. The decorator may be applied several times, once for each name.
    """
    if not ref or ref != ref.strip():
        raise ValueError(f"{ref!r} is no name of a handler; write it like 'mycompany/send-mail'")

    def register(function: F) -> F:
        registered = Handler(ref, function, settings, gathers)
        setattr(function, MARK, (*getattr(function, MARK, ()), registered))
        return function

    return register

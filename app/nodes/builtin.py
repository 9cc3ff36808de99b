"""The handlers that every worker has."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator

from app.flowdsl.expressions import Expression, compile_expression
from app.nodes import paths
from app.nodes.api import Code, HandlerError, HandlerSettings, handler
from app.nodes.http import http_request
from app.nodes.mapping import map_items
from app.nodes.step import Step
from app.nodes.template import Template, TemplateText

__all__ = ["http_request", "map_items"]

MAX_DELAY_S = 24 * 3600.0


def packet_of(step: Step) -> dict[str, Any]:
    """Return the step's input if it is an object, as handlers that add a key need it."""
    if not isinstance(step.input, dict):
        raise HandlerError("the packet is no object, so nothing can be added to it", code=Code.VALIDATION)
    return step.input


class Nothing(HandlerSettings):
    """No settings; what a document says is kept and not used."""

    model_config = HandlerSettings.model_config | {"extra": "ignore"}


@handler("core/source", settings=Nothing)
def source(_: Step) -> None:
    """Pass on what the run was given."""


@handler("core/terminal", settings=Nothing)
def terminal(_: Step) -> None:
    """Pass on what arrives; it is the flow's output."""


@handler("core/join", settings=Nothing, gathers=True)
def join(_: Step) -> None:
    """Pass on what all incoming edges have brought, as an object by the names of the nodes that it came from."""


class LogSettings(HandlerSettings):
    message: TemplateText
    level: str = "info"


@handler("core/log", settings=LogSettings)
def log(step: Step) -> None:
    """Write ``message``, a template, into the run's log."""
    step.log(step.settings.message.render(step.input), level=step.settings.level)


class RenderSettings(HandlerSettings):
    template: TemplateText
    output_key: Annotated[str, Field(min_length=1)] = "content"


@handler("core/template-render", settings=RenderSettings)
def template_render(step: Step) -> dict[str, Any]:
    """Add the rendered ``template`` under ``outputKey``."""
    return packet_of(step) | {step.settings.output_key: step.settings.template.render(step.input)}


@lru_cache(maxsize=512)
def _condition(text: str) -> Expression:
    return compile_expression(text)


Condition = Annotated[Expression, BeforeValidator(lambda text: _condition(text) if isinstance(text, str) else text)]


class Route(HandlerSettings):
    when: Condition
    route: Annotated[str, Field(min_length=1)]


class RouterSettings(HandlerSettings):
    routes: list[Route] = Field(max_length=100)


@handler("core/router", settings=RouterSettings)
def router(step: Step) -> dict[str, Any]:
    """Add ``route``: that of the first of ``routes`` whose ``when`` holds for the packet, else ``default``."""
    packet = packet_of(step)
    taken = (route.route for route in step.settings.routes if route.when.holds(packet, packet, step.meta))
    return packet | {"route": next(taken, "default")}


Path = Annotated[str, Field(min_length=1)]


class TransformSettings(HandlerSettings):
    pick: list[Path] | None = None
    rename: dict[Path, Path] = Field(default_factory=dict)
    set: dict[Path, Any] = Field(default_factory=dict)


@handler("core/transform", settings=TransformSettings)
def transform(step: Step) -> dict[str, Any]:
    """Keep only the paths in ``pick``, move those in ``rename`` (old: new), write those in ``set``; in that order."""
    packet, settings = packet_of(step), step.settings
    if settings.pick is not None:
        picked: dict[str, Any] = {}
        for path in settings.pick:
            if (value := paths.get(packet, path)) is not paths.MISSING:
                picked = paths.put(picked, path, value)
        packet = picked
    for old, new in settings.rename.items():
        if (value := paths.get(packet, old)) is not paths.MISSING:
            packet = paths.put(paths.drop(packet, old), new, value)
    for path, value in settings.set.items():
        packet = paths.put(packet, path, value)
    return packet


def _delay(value: Any) -> float | Template:
    """Read the setting: a number of seconds, or a template that renders to one."""
    if isinstance(value, str):
        return Template.read(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_DELAY_S:
        return float(value)
    raise ValueError(f"must be a number from 0 to {MAX_DELAY_S:g}, or a template like '{{{{ seconds }}}}'")


class DelaySettings(HandlerSettings):
    seconds: Annotated[float | Template, PlainValidator(_delay)]


@handler("core/delay", settings=DelaySettings)
def delay(step: Step) -> None:
    """Wait ``seconds``: a number, or a template that renders to one (to nothing: no wait)."""
    seconds = step.settings.seconds
    step.sleep(seconds if isinstance(seconds, float) else _rendered_seconds(seconds.render(step.input)))


def _rendered_seconds(text: str) -> float:
    try:
        seconds = float(text.strip() or 0)
    except ValueError:
        seconds = -1.0
    if 0 <= seconds <= MAX_DELAY_S:
        return seconds
    raise HandlerError(f"seconds renders to {text[:40]!r}; give 0 to {MAX_DELAY_S:g}", code=Code.VALIDATION)


class CountSettings(HandlerSettings):
    key: TemplateText


@handler("core/count", settings=CountSettings)
def count(step: Step) -> dict[str, Any]:
    """Add one to the durable counter ``key`` (a template), once for this packet however often it is executed."""
    packet, key = packet_of(step), step.settings.key.render(step.input)
    if not 1 <= len(key) <= 200:
        raise HandlerError(f"the key renders to {len(key)} characters; it must have 1 to 200", code=Code.VALIDATION)
    return packet | {"count": step.count(key)}


class FailSettings(HandlerSettings):
    message: TemplateText
    code: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")] = Code.PERMANENT.value


@handler("core/fail", settings=FailSettings)
def fail(step: Step) -> None:
    """Fail with ``message`` (a template) and ``code``."""
    raise HandlerError(step.settings.message.render(step.input), code=step.settings.code)

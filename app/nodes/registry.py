"""Which handlers this process has. There is no global registry: modules are named, and their functions collected."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from importlib.metadata import entry_points as installed_entry_points
from types import ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary

from app.errors import SettingError
from app.nodes.api import MARK, Handler

BUILTIN: Final = "app.nodes.builtin"
GROUP: Final = "rolecall.nodes"


class HandlerRegistry:
    """Handlers by ref. Immutable once it is built."""

    def __init__(self, handlers: Iterable[Handler] = ()) -> None:
        self.bound: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        """A cache of :func:`app.engine.binding.bind`: what each plan has here, for as long as the plan lives."""
        self._handlers: dict[str, Handler] = {}
        for handler in handlers:
            other = self._handlers.setdefault(handler.ref, handler)
            if other is not handler:
                raise SettingError(
                    f"the handler {handler.ref!r} is registered twice: by {other.origin} and by {handler.origin}; "
                    "rename one, or leave its module out of NODE_MODULES"
                )

    @classmethod
    def load(cls, modules: Iterable[ModuleType]) -> HandlerRegistry:
        """Collect every function that the modules hold and :func:`app.nodes.handler` has marked.

        Raises:
            SettingError: two different functions have the same ref.
        """
        return cls(handler for module in modules for handler in _marked(module))

    @cached_property
    def refs(self) -> frozenset[str]:
        """What a worker announces."""
        return frozenset(self._handlers)

    def find(self, candidates: Sequence[str]) -> Handler | None:
        """Return the first of the candidates that is registered."""
        for ref in candidates:
            if (found := self._handlers.get(ref)) is not None:
                return found
        return None


def load_handlers(module_names: Iterable[str] = (), *, entry_points: bool = True) -> HandlerRegistry:
    """Import the built-in handlers, those that installed packages offer, and those of ``NODE_MODULES``.

    Raises:
        SettingError: a module cannot be imported, or a ref is registered twice; naming it.
    """
    names = {BUILTIN: "the built-in handlers"}
    if entry_points:
        for point in installed_entry_points(group=GROUP):
            names.setdefault(point.module, f"the entry point {point.name!r} of {GROUP}")
    for name in module_names:
        names.setdefault(name, "NODE_MODULES")
    return HandlerRegistry.load([_import(name, source) for name, source in names.items()])


def _import(name: str, source: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever a module's own code raises
        raise SettingError(
            f"{source} names the module {name!r}, which cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _marked(module: ModuleType) -> Iterator[Handler]:
    for value in list(vars(module).values()):
        yield from getattr(value, "__dict__", {}).get(MARK, ())

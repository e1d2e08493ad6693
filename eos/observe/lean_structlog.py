"""structlog without what it loads for tracebacks of rich: a seventh of what a process takes to start.

It imports rich, and that pygments, wherever they are installed; eos prints tracebacks otherwise. Where a job's own code has
structlog use them, they are imported then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

# What structlog imports, and the class that it takes from there.
_MODULES = {"rich.console": "Console", "rich.traceback": "Traceback", "rich.pretty": ""}


class _LaterModule(ModuleType):
    """Stands for a module that is imported when something of it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


class _LaterClass:
    """Stands for a class of such a module."""

    def __init__(self, module: str, name: str) -> None:
        self._where = (module, name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._class()(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._class(), name)

    def _class(self) -> Any:
        module, name = self._where
        return getattr(import_module(module), name)


@contextmanager
def _rich_later() -> Iterator[None]:
    if any(name in sys.modules for name in _MODULES):  # something else needs it: nothing would be saved
        yield
        return
    for module, class_name in _MODULES.items():
        sys.modules[module] = stands_in = _LaterModule(module)
        if class_name:
            setattr(stands_in, class_name, _LaterClass(module, class_name))
    try:
        yield
    finally:
        stood_in = [sys.modules.pop(module) for module in _MODULES]
        if (rich := sys.modules.get("rich")) is not None:
            for one in stood_in:  # structlog says rich.pretty, and imports it no more
                setattr(rich, one.__name__.rpartition(".")[2], one)


with _rich_later():
    import structlog

__all__ = ["structlog"]

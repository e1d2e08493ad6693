"""Names that a package offers and imports only when they are asked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any


def homes_of(names: Mapping[str, str]) -> Mapping[str, str]:
    """The module of each name, from the names of each module, which are separated by spaces."""
    return {name: home for home, of_home in names.items() for name in of_home.split()}


def named(package: str, homes: Mapping[str, str], name: str) -> Any:
    """What a package's ``__getattr__`` returns: asked once for each name, which the package has then.

    Raises:
        AttributeError: the package offers no such name.
    """
    if (home := homes.get(name)) is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    found = getattr(import_module(f"{package}.{home}"), name)
    setattr(sys.modules[package], name, found)
    return found

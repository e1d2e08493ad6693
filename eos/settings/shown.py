"""Shown: the settings as they may be printed, each with the source it came from and no secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from eos.settings.secrets import hidden

DEFAULT = "default"


class Shown(NamedTuple):
    """One value, printable, and the source that gave it."""

    value: object
    source: str


def shown(model: BaseModel, origins: Mapping[str, str], prefix: str = "") -> dict[str, Any]:
    """Nested tables of `Shown`. Tables of free names have one entry per name that was given."""
    return {
        name: _entry(f"{prefix}{name}", name, getattr(model, name), origins)
        for name in type(model).model_fields
    }


def _entry(dotted: str, name: str, value: object, origins: Mapping[str, str]) -> object:
    if isinstance(value, BaseModel):
        return shown(value, origins, f"{dotted}.")
    if isinstance(value, dict):
        return {key: _entry(f"{dotted}.{key}", key, inner, origins) for key, inner in value.items()}
    return Shown(hidden(name, value), origins.get(dotted, DEFAULT))

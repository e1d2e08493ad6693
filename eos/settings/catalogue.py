"""Catalogue: every setting there is, by its dotted name, as the models declare it."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

ENV_PREFIX = "EOS_"
NESTED = "__"
# Accepted beside the settings: a short name for what every instance of a deployment sets, and the
# directory that mounted secrets are read from.
ORDINAL_VARIABLE = "EOS_ORDINAL"
SECRETS_DIR_VARIABLE = "EOS_SECRETS_DIR"

Parts = tuple[str, ...]


class Kind(enum.Enum):
    """What stands at a dotted name."""

    TABLE = "table"  # a table of settings
    VALUE = "value"  # one setting
    OPTIONS = "options"  # librdkafka's options: flat, dotted names
    FREE = "free"  # the job's own table: validated later, by the job's model


Options = Annotated[dict[str, str | int | float | bool], Kind.OPTIONS]
Free = Annotated[dict[str, Any], Kind.FREE]


@dataclass(frozen=True, slots=True)
class Described:
    """One setting, as help texts print it."""

    name: str
    variable: str
    default: object
    description: str


class Catalogue:
    """The settings of a model, by path."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._kinds: dict[Parts, Kind] = {(): Kind.TABLE}
        self._fields: dict[str, FieldInfo] = {}
        for path, kind, field in _walk(model, ()):
            self._kinds[path] = kind
            if kind is not Kind.TABLE:
                self._fields[".".join(path)] = field

    @property
    def fields(self) -> dict[str, FieldInfo]:
        """Every setting but the tables, by dotted name, in the order of declaration."""
        return dict(self._fields)

    def kind(self, path: Parts) -> Kind | None:
        """What stands at a path, ``None`` if nothing does."""
        return self._kinds.get(path)

    def locate(self, parts: Parts) -> tuple[Parts, Parts] | None:
        """Split a path into that of a known setting or table and the rest inside a free table."""
        for end in range(1, len(parts) + 1):
            kind = self._kinds.get(parts[:end])
            if kind is None:
                return None
            if kind in (Kind.OPTIONS, Kind.FREE):
                return parts[:end], parts[end:]
        return parts, ()

    def names(self) -> list[str]:
        """Dotted names, tables included: what an unknown name is compared with."""
        return [".".join(path) for path in self._kinds if path]

    def variables(self) -> list[str]:
        """Every environment variable that is understood."""
        return [*map(variable_of, self._fields), ORDINAL_VARIABLE, SECRETS_DIR_VARIABLE]

    def described(self) -> list[Described]:
        """Every setting with its default and its description."""
        return [
            Described(
                name, variable_of(name), field.get_default(call_default_factory=True), field.description or ""
            )
            for name, field in self._fields.items()
        ]


def variable_of(name: str) -> str:
    """The environment variable of a dotted name."""
    return ENV_PREFIX + name.upper().replace(".", NESTED)


def _walk(model: type[BaseModel], prefix: Parts) -> Iterator[tuple[Parts, Kind, FieldInfo]]:
    for name, field in model.model_fields.items():
        path = (*prefix, name)
        table = field.annotation
        if isinstance(table, type) and issubclass(table, BaseModel):
            yield path, Kind.TABLE, field
            yield from _walk(table, path)
        else:
            marks = [mark for mark in field.metadata if isinstance(mark, Kind)]
            yield path, (marks[0] if marks else Kind.VALUE), field

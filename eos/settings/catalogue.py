"""Catalogue: every setting there is, by its dotted name, as the models declare it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

ENV_PREFIX = "EOS_"
NESTED = "__"
# Accepted beside the settings: a short name for what every instance of a deployment sets, and the
# directory that mounted secrets are read from.
ORDINAL_VARIABLE = "EOS_ORDINAL"
SECRETS_DIR_VARIABLE = "EOS_SECRETS_DIR"
JOB = "job"  # the job's own table, which the job's model checks later


@dataclass(frozen=True, slots=True)
class Described:
    """One setting, as help texts print it."""

    name: str
    variable: str
    default: object
    description: str


class Catalogue:
    """The settings of a model.

    Attributes:
        fields: every setting but the tables, by dotted name, in the order of declaration.
        tables: the tables of settings, by dotted name; those of free names too.
        options: of those, the tables of client options, whose names are flat and dotted.
    """

    def __init__(self, model: type[BaseModel]) -> None:
        walked = dict(_walk(model))
        self.fields = {name: field for name, field in walked.items() if not model_of(field)}
        self._free = {name for name, field in self.fields.items() if get_origin(field.annotation) is dict}
        self.tables = (walked.keys() - self.fields.keys()) | self._free
        self.options = self._free - {JOB}

    def knows(self, name: str) -> bool:
        """Whether a dotted name is that of a setting or a table, or lies in a table of free names."""
        return name in self.names() or (self._inside(name) != "" and all(self.split(name)))

    def split(self, name: str) -> list[str]:
        """A dotted name by table: what is inside a table of client options stays dotted."""
        table = self._inside(name)
        if table in self.options:
            return [*table.split("."), name.removeprefix(f"{table}.")]
        return name.split(".")

    def spelled(self, name: str) -> str:
        """The one spelling of a name: client options have dots, for which a variable has underscores.

        The few librdkafka names with underscores are callbacks and pointers, which no text can hold.
        """
        *tables, last = self.split(name)
        if ".".join(tables) not in self.options:
            return name
        return ".".join([*tables, last.strip().lower().replace("_", ".")])

    def _inside(self, name: str) -> str:
        return next((table for table in self._free if name.startswith(f"{table}.")), "")

    def names(self) -> list[str]:
        """Dotted names, tables included: what an unknown name is compared with."""
        return sorted({*self.fields, *self.tables})

    def variables(self) -> list[str]:
        """Every environment variable that is understood."""
        return [*map(variable_of, self.fields), ORDINAL_VARIABLE, SECRETS_DIR_VARIABLE]

    def described(self) -> list[Described]:
        """Every setting with its default and its description."""
        found = []
        for name, field in self.fields.items():
            default = field.get_default(call_default_factory=True)
            found.append(Described(name, variable_of(name), default, field.description or ""))
        return found


def variable_of(name: str) -> str:
    """The environment variable of a dotted name."""
    return ENV_PREFIX + name.upper().replace(".", NESTED)


def name_of(variable: str) -> str:
    """The dotted name of an environment variable."""
    return variable.removeprefix(ENV_PREFIX).lower().replace(NESTED, ".")


def model_of(field: FieldInfo) -> type[BaseModel] | None:
    """The model of a field that is a table; None for any other field."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _walk(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}", field
        if table := model_of(field):
            yield from _walk(table, f"{prefix}{name}.")

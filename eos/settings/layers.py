"""Layers: the sources of settings, each read into nested values under the catalogue's names.

pydantic-settings merges them, first over last. It is not asked to read them: its environment source lets
unknown variables pass, and a source that fails hides what the others would have to say.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from eos.settings.catalogue import (
    ENV_PREFIX,
    NESTED,
    ORDINAL_VARIABLE,
    SECRETS_DIR_VARIABLE,
    Catalogue,
    Kind,
    Parts,
    variable_of,
)
from eos.settings.options import flattened, refusal, spelled
from eos.settings.problems import Problem, nearest
from eos.settings.secrets import is_sensitive, read_secret
from eos.settings.tables import as_json

# Kubernetes puts the services of a namespace into the environment of its pods; a service named eos-…
# must not keep a job from starting.
_SERVICE_LINK = re.compile(
    r"_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$"
)
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")
_ORDINAL = ("ownership", "ordinal")
_LONG_ORDINAL = variable_of(".".join(_ORDINAL))
_NO_SUCH = "there is no such setting"


class Said(NamedTuple):
    """Where a value came from: the name as the user wrote it, and the source."""

    written: str
    source: str

    @property
    def where(self) -> str:
        """The source, unless it is the written name itself (a variable, a mounted file)."""
        return "" if self.source.endswith(self.written) else self.source

    def inner(self, key: str) -> Said:
        """The same source, one level further in."""
        return Said(f"{self.written}.{key}" if self.written else key, self.source)


class Layer(PydanticBaseSettingsSource):
    """One source's values, with the place that each was written at."""

    def __init__(self, model: type[BaseSettings]) -> None:
        super().__init__(model)
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}

    def __call__(self) -> dict[str, Any]:
        return self.values

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Part of pydantic-settings' interface; ``__call__`` has all values at once."""
        del field
        return self.values.get(field_name), field_name, False

    def get(self, path: Parts) -> Any:
        """The value at a path, ``None`` if this source is silent about it."""
        value: Any = self.values
        for part in path:
            if not isinstance(value, Mapping) or part not in value:
                return None
            value = value[part]
        return value

    def put(self, path: Parts, value: Any, source: str) -> None:
        """Set one value."""
        table = self.values
        for part in path[:-1]:
            inner = table.get(part)
            if not isinstance(inner, dict):
                inner = table[part] = {}
            table = inner
        table[path[-1]] = value
        self.origins[".".join(path)] = source


class Reader:
    """Reads sources into layers and collects what is wrong with them."""

    def __init__(self, model: type[BaseSettings], catalogue: Catalogue) -> None:
        self._model = model
        self._catalogue = catalogue
        self.problems: list[Problem] = []

    def command_line(self, overrides: Mapping[str, Any]) -> Layer:
        """Values given by the caller, dotted or nested. ``None`` means "not given"."""
        layer = Layer(self._model)
        self._descend(layer, (), overrides, Said("", "command line"))
        return layer

    def environment(self, environ: Mapping[str, str]) -> Layer:
        """``EOS_…`` variables, ``__`` between the levels. An empty one counts as not set."""
        layer = Layer(self._model)
        # A shorter name is the table of a longer one: sorted, the single value wins over the JSON.
        for variable in sorted(name for name in environ if name.upper().startswith(ENV_PREFIX)):
            value = environ[variable]
            if variable != variable.upper():
                self.problems.append(
                    Problem(
                        variable, "the variables of eos are written in capitals", f"write {variable.upper()}"
                    )
                )
                continue
            if variable == SECRETS_DIR_VARIABLE or _is_service_link(variable, value):
                continue
            parts = tuple(variable.removeprefix(ENV_PREFIX).lower().split(NESTED))
            if variable == ORDINAL_VARIABLE:
                parts = _ORDINAL
                if value and environ.get(_LONG_ORDINAL):
                    fix = f"keep {ORDINAL_VARIABLE}, which is short for it"
                    self.problems.append(Problem(_LONG_ORDINAL, f"{ORDINAL_VARIABLE} is set too", fix))
            self._variable(layer, variable, parts, value)
        return layer

    def secret_files(self, directory: Path) -> Layer:
        """Files named like settings, ``kafka__sasl_password``, in a mounted directory.

        Hidden ones are Kubernetes' own. Those without ``__`` that are no settings are left alone:
        certificates are often mounted beside.
        """
        layer = Layer(self._model)
        try:
            files = sorted(
                path for path in directory.iterdir() if not path.name.startswith(".") and path.is_file()
            )
        except OSError as error:
            what = f"{directory} cannot be listed ({error.strerror})"
            fix = "name the directory that the secrets are mounted at"
            self.problems.append(Problem(SECRETS_DIR_VARIABLE, what, fix))
            return layer
        for path in files:
            parts = tuple(path.name.lower().split(NESTED))
            said = Said(str(path), f"secret file {path}")
            if self._catalogue.locate(parts) is None:
                if len(parts) > 1:
                    self._unknown(".".join(parts), said)
                continue
            try:
                self._put(layer, parts, read_secret(path), said)
            except ValueError as error:
                self.problems.append(
                    Problem(str(path), str(error), "mount the secret there, or remove the file")
                )
        return layer

    def toml(self, path: Path) -> Layer:
        """A TOML file."""
        layer = Layer(self._model)
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            self.problems.append(Problem(str(path), "there is no such file", "name an existing TOML file"))
        except OSError as error:
            self.problems.append(
                Problem(str(path), f"cannot be read ({error.strerror})", "let the process read it")
            )
        except tomllib.TOMLDecodeError as error:
            self.problems.append(Problem(str(path), f"is not TOML: {error}", "correct the syntax there"))
        except UnicodeDecodeError:
            self.problems.append(Problem(str(path), "is not UTF-8 text", "save it as UTF-8"))
        else:
            self._descend(layer, (), values, Said("", f"toml {path}"))
        return layer

    def referenced_secrets(self, layers: Sequence[Layer]) -> Layer:
        """The secrets that a ``*_file`` setting points at, read now: a mount may be gone later."""
        found = Layer(self._model)
        for name in filter(is_sensitive, self._catalogue.fields):
            path, pointer = tuple(name.split(".")), tuple(f"{name}_file".split("."))
            says_file = next((layer for layer in layers if layer.get(pointer) is not None), None)
            says_value = next((layer for layer in layers if layer.get(path) is not None), None)
            if says_file is None:
                continue
            said = Said(".".join(pointer), says_file.origins[".".join(pointer)])
            if says_value is not None:
                what = f"{name} is given too ({says_value.origins[name]}), so one of them would be ignored"
                self.problems.append(Problem(said.written, what, "keep one of them", said.where))
                continue
            file = Path(str(says_file.get(pointer)))
            try:
                found.put(path, read_secret(file), f"secret file {file}")
            except ValueError as error:
                fix = "point it at the mounted secret"
                self.problems.append(Problem(said.written, str(error), fix, said.where))
        return found

    def _variable(self, layer: Layer, variable: str, parts: Parts, value: str) -> None:
        located = self._catalogue.locate(parts)
        if located is None or not all(parts):
            near = nearest(variable, self._catalogue.variables(), separator=NESTED)
            self.problems.append(Problem(variable, _NO_SUCH, _meant(near)))
        elif value or (self._catalogue.kind(located[0]) is Kind.FREE and located[1]):
            # Only the job knows what an empty text means to it.
            self._put(layer, parts, value, Said(variable, f"environment {variable}"))

    def _descend(self, layer: Layer, prefix: Parts, table: Mapping[str, Any], said: Said) -> None:
        for key, value in table.items():
            if value is not None:
                self._put(layer, (*prefix, *key.split(".")), value, said.inner(key))

    def _put(self, layer: Layer, parts: Parts, value: Any, said: Said) -> None:
        located = self._catalogue.locate(parts)
        if located is None:
            self._unknown(".".join(parts), said)
            return
        path, rest = located
        kind = self._catalogue.kind(path)
        if kind is Kind.VALUE or (kind is Kind.FREE and rest):
            layer.put((*path, *rest), value, said.source)
        elif kind is Kind.OPTIONS and rest and not isinstance(value, Mapping):
            self._option(layer, path, ".".join(rest), value, said)
        elif (table := self._table(value, said)) is None:
            return
        elif kind is Kind.OPTIONS:
            for option, setting in flattened(table):
                self._option(layer, path, ".".join((*rest, option)), setting, said.inner(option))
        else:
            self._descend(layer, path, table, said)

    def _table(self, value: Any, said: Said) -> Mapping[str, Any] | None:
        if isinstance(value, str):
            try:
                value = as_json(value)
            except ValueError as error:
                fix = 'give a JSON object, {"name": value}'
                self.problems.append(Problem(said.written, str(error), fix, said.where))
                return None
        if isinstance(value, Mapping):
            return value
        self.problems.append(
            Problem(said.written, "is a table, not one value", "give the settings inside it", said.where)
        )
        return None

    def _option(self, layer: Layer, path: Parts, option: str, value: Any, said: Said) -> None:
        name = spelled(option)
        refused = refusal(path[-1], name)
        if refused is not None:
            why, fix = refused
            self.problems.append(Problem(said.written, f"{name} is fixed by eos: {why}", fix, said.where))
        elif isinstance(value, str | int | float):
            layer.put((*path, name), value, said.source)
        else:
            what = f"a librdkafka option is text, a number or true/false, not {type(value).__name__}"
            self.problems.append(Problem(said.written, what, "give one value", said.where))

    def _unknown(self, dotted: str, said: Said) -> None:
        near = nearest(dotted, self._catalogue.names())
        self.problems.append(Problem(said.written, _NO_SUCH, _meant(near), said.where))


def _meant(near: str) -> str:
    return f"did you mean {near}?" if near else "remove it, or see `eos config show` for all names"


def _is_service_link(variable: str, value: str) -> bool:
    if NESTED in variable:
        return False
    address = variable.endswith("_PORT") and bool(_SERVICE_ADDRESS.match(value))
    return address or bool(_SERVICE_LINK.search(variable))

"""Sources: what was given, by dotted name, with the source that gave it.

pydantic-settings reads the names and the nesting of variables and mounted files. Each of them is a source of its own:
pydantic-settings does not say which one a value came from, and lets unknown variables pass.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource

from eos.settings.catalogue import (
    ENV_PREFIX,
    JOB,
    NESTED,
    ORDINAL_VARIABLE,
    SECRETS_DIR_VARIABLE,
    Catalogue,
    name_of,
    variable_of,
)
from eos.settings.problems import Problem, nearest
from eos.settings.secrets import is_sensitive, read_secret

# Kubernetes puts the services of a namespace into the environment of its pods; a service named eos-…
# must not keep a job from starting.
_SERVICE_LINK = re.compile(
    r"_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$"
)
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")
_ORDINAL = "ownership.ordinal"


class Given(NamedTuple):
    """A value, and the source that gave it."""

    value: Any
    source: str


Values = dict[str, Given]


class _Text(EnvSettingsSource):
    """One variable or mounted file, read as pydantic-settings reads the environment."""

    def __init__(self, model: type[BaseSettings], variable: str, text: str) -> None:
        super().__init__(model)
        self.env_vars = {variable.lower(): text}

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """Nothing: the JSON of a table is decoded by `Sources`, and of a value only its model knows whether 0123 is a number."""
        del field_name, field
        return value


class Sources:
    """Reads sources, and collects what is wrong with them.

    Attributes:
        problems: what is wrong so far.
    """

    def __init__(self, model: type[BaseSettings]) -> None:
        self._model = model
        self._catalogue = Catalogue(model)
        self.problems: list[Problem] = []

    def overrides(self, overrides: Mapping[str, Any], source: str) -> Values:
        """Values given by the caller, dotted or nested. ``None`` means "not given"."""
        return dict(self._leaves(overrides, source))

    def environment(self, environ: Mapping[str, str]) -> Values:
        """``EOS_…`` variables, ``__`` between the levels. An empty one counts as not set."""
        values: Values = {}
        # A shorter name is the table of a longer one: sorted, the single value wins over the JSON.
        for variable in sorted(name for name in environ if name.upper().startswith(ENV_PREFIX)):
            text = environ[variable]
            if variable == SECRETS_DIR_VARIABLE or _is_service_link(variable, text):
                continue
            name = _ORDINAL if variable == ORDINAL_VARIABLE else name_of(variable)
            if variable != variable.upper():
                what = "the variables of eos are written in capitals"
                self._problem(variable, what, f"write {variable.upper()}")
            elif not self._catalogue.knows(name):
                self._no_such(variable, nearest(variable, self._catalogue.variables(), separator=NESTED))
            elif text or name.startswith(f"{JOB}."):  # only the job knows what an empty text means to it
                values |= self._of_text(name, text, f"environment {variable}")
        if environ.get(ORDINAL_VARIABLE) and environ.get(variable_of(_ORDINAL)):
            fix = f"keep {ORDINAL_VARIABLE}, which is short for it"
            self._problem(variable_of(_ORDINAL), f"{ORDINAL_VARIABLE} is set too", fix)
        return values

    def secret_files(self, directory: Path) -> Values:
        """Files named like settings, ``kafka__sasl_password``, in a mounted directory.

        Hidden ones are Kubernetes' own. Those without ``__`` that are no settings are left alone:
        certificates are often mounted beside.
        """
        # Not by NestedSecretsSettingsSource: it strips all white space, which may be part of a password.
        values: Values = {}
        try:
            files = sorted(path for path in directory.iterdir() if path.name[0] != "." and path.is_file())
        except OSError as error:
            what = f"{directory} cannot be listed ({error.strerror})"
            self._problem(SECRETS_DIR_VARIABLE, what, "name the directory that the secrets are mounted at")
            return values
        for path in files:
            name = name_of(path.name)
            if self._catalogue.knows(name):
                try:
                    values |= self._of_text(name, read_secret(path), f"secret file {path}")
                except ValueError as error:
                    self._problem(str(path), str(error), "mount the secret there, or remove the file")
            elif NESTED in path.name:
                self._no_such(str(path), nearest(name, self._catalogue.names()))
        return values

    def toml(self, path: Path) -> Values:
        """A TOML file."""
        # Not by TomlConfigSettingsSource: it passes over what is no regular file, such as a directory or a pipe.
        try:
            return dict(self._leaves(tomllib.loads(path.read_text(encoding="utf-8")), f"toml {path}"))
        except FileNotFoundError:
            self._problem(str(path), "there is no such file", "name an existing TOML file")
        except IsADirectoryError:
            self._problem(str(path), "is a directory", f"name a TOML file, for example {path / 'NAME.toml'}")
        except OSError as error:
            self._problem(str(path), f"cannot be read ({error.strerror})", "let the process read it")
        except UnicodeDecodeError:
            self._problem(str(path), "is not UTF-8 text", "save it as UTF-8")
        except ValueError as error:
            self._problem(str(path), f"is not TOML: {error}", "correct the syntax there")
        return {}

    def referenced_secrets(self, given: Values) -> Values:
        """The secrets that a ``*_file`` setting points at, read now: a mount may be gone later."""
        values: Values = {}
        for name in filter(is_sensitive, self._catalogue.fields):
            pointer = f"{name}_file"
            if pointer not in given:
                continue
            file, source = Path(str(given[pointer].value)), given[pointer].source
            if name in given:
                what = f"{name} is given too ({given[name].source}), so one of them would be ignored"
                self._problem(pointer, what, "keep one of them", source)
                continue
            try:
                values[name] = Given(read_secret(file), f"secret file {file}")
            except ValueError as error:
                self._problem(pointer, str(error), "point it at the mounted secret", source)
        return values

    def nested(self, given: Values) -> dict[str, Any]:
        """The values in tables, as the models take them."""
        result: dict[str, Any] = {}
        for name, (value, source) in given.items():
            *tables, last = self._catalogue.split(name)
            inner: Any = result
            for table in tables:
                inner = inner.setdefault(table, {}) if isinstance(inner, dict) else inner
            if isinstance(inner, dict) and not isinstance(inner.get(last), dict):
                inner[last] = value
            else:
                what = "one source gives a whole table as one value, and another what is inside it"
                self._problem(name, what, "keep one of them", source)
        return result

    def _of_text(self, name: str, text: str, source: str) -> Values:
        return dict(self._leaves(_Text(self._model, variable_of(name), text)(), source))

    def _leaves(self, table: Mapping[str, Any], source: str, prefix: str = "") -> Iterator[tuple[str, Given]]:
        for key, value in table.items():
            name = f"{prefix}{key}"
            inner = self._table(name, value, source)
            if inner is not None:
                yield from self._leaves(inner, source, f"{name}.")
            elif value is not None:
                yield self._catalogue.spelled(name), Given(value, source)

    def _table(self, name: str, value: Any, source: str) -> Mapping[str, Any] | None:
        """What is a table, or the JSON of one; ``None`` for any other value."""
        is_table = name in self._catalogue.tables
        if is_table and isinstance(value, str) and value:
            try:
                value = json.loads(value)
            except ValueError:  # whose text may hold a secret
                self._problem(name, "is not JSON", 'give a JSON object, {"name": value}', source)
                return {}
        return value if isinstance(value, Mapping) and (value or is_table) else None

    def _no_such(self, name: str, near: str) -> None:
        self._problem(name, "there is no such setting", meant(near))

    def _problem(self, name: str, what: str, fix: str, where: str = "") -> None:
        self.problems.append(Problem(name, what, fix, where))


def meant(near: str) -> str:
    """The fix for an unknown name, by the name that is nearest to it."""
    return f"did you mean {near}?" if near else "remove it, or see `eos config show` for all names"


def _is_service_link(variable: str, value: str) -> bool:
    is_address = variable.endswith("_PORT") and _SERVICE_ADDRESS.match(value)
    return NESTED not in variable and bool(is_address or _SERVICE_LINK.search(variable))

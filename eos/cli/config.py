"""`eos config`: the settings of this process, and all settings there are."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from eos.cli.help import command
from eos.cli.options import Assignments, Config, Given
from eos.cli.printing import say
from eos.exits import ExitCode

_WIDTH = 80
_COLUMN = 40  # where sources and variables begin, if the value leaves room

commands = typer.Typer(no_args_is_help=True, help="Show settings: this process's, or all there are.")


@command(commands, ExitCode.DONE, ExitCode.CONFIGURATION)
def show(
    config: Config = None,
    assignments: Assignments = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only what is not a default.")] = False,
) -> None:
    """Print every setting with its value and the source that said it.

    Sources, the first wins: command line (--set), environment (EOS_…), mounted
    secret files (EOS_SECRETS_DIR), the TOML file, defaults. Secrets are hidden.

    Example:
      eos config show --config conf/refunds.toml --set transaction.interval_ms=50
    """
    from eos.settings.shown import DEFAULT

    for name, value, source in _flat(Given(config=config, assignments=assignments).settings().shown()):
        if not (changed and source == DEFAULT):
            say(_beside(f"{name} = {as_toml(value)}", f"# {source}"))


@command(commands, ExitCode.DONE, ExitCode.CONFIGURATION)
def describe(
    prefix: Annotated[str, typer.Argument(help="Only names that begin so, for example kafka.")] = "",
) -> None:
    """Print every setting there is: name, default, variable, meaning.

    Example:
      eos config describe transaction
    """
    from eos.errors import ConfigError
    from eos.settings import Settings
    from eos.settings.problems import nearest

    described = [one for one in Settings.described() if one.name.startswith(prefix)]
    if not described:
        names = {one.name for one in Settings.described()}
        near = nearest(prefix, names | {name.partition(".")[0] for name in names})
        meant = f"eos config describe {near}" if near else "eos config describe, which shows all"
        raise ConfigError(f"no setting begins with {prefix!r}. Fix: {meant}")
    for one in described:
        say(_beside(f"{one.name} = {as_toml(one.default)}", one.variable))
        say(
            textwrap.fill(one.description, _WIDTH, initial_indent="    ", subsequent_indent="    "),
            lines=True,
        )


def _flat(tables: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object, str]]:
    for name, entry in tables.items():
        if isinstance(entry, Mapping):
            yield from _flat(entry, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", entry.value, entry.source


def as_toml(value: object) -> str:
    """As TOML writes it, for texts, numbers and truth; TOML has no word for "not set"."""
    if value is None:
        return "(not set)"
    if isinstance(value, (dict, list, tuple)) and not value:
        return "(none)"
    return json.dumps(value, ensure_ascii=False, default=str)


def _beside(left: str, right: str) -> str:
    return f"{left:<{_COLUMN}}  {right}"

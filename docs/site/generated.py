"""The pages of the reference that are written from the code: the settings, and the commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from textwrap import dedent
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.main import get_command

from eos.cli.app import app
from eos.cli.config import as_toml
from eos.settings import Settings
from eos.settings.catalogue import Described

_SETTINGS = """# Settings

One order of sources, the first wins: command line (`--set NAME=VALUE`), environment, mounted secret files
(`EOS_SECRETS_DIR`), the TOML file, defaults. eos refuses a name that does not exist, and names the nearest one.

Each setting has a name in the TOML file and a variable of the environment. `eos config describe` prints this list;
`eos config show` prints the values of a process and their sources, without secrets.
"""
_COMMANDS = """# Commands

Each command prints this text with `--help`. Its last lines are the [exit codes](exit-codes.md) that it can end with.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    pages = {"reference/settings.md": settings(), "reference/cli.md": commands()}
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def settings() -> str:
    """A table of settings for each table of the TOML file."""
    ordered = sorted(Settings.described(), key=_table_of)
    return "\n".join([_SETTINGS, *(_table(name, list(rows)) for name, rows in groupby(ordered, _table_of))])


def _table_of(setting: Described) -> str:
    return setting.name.rpartition(".")[0]


def _table(name: str, rows: list[Described]) -> str:
    heading = f"## [{name}]" if name else "## At the top"
    lines = (
        f"| `{row.name.rpartition('.')[2]}`{{: #{row.name} .name }}<br>`{row.variable}`{{: .name }} | `{as_toml(row.default)}` "
        f"| {_cell(row.description)} |"
        for row in rows
    )
    return "\n".join([heading, "", "| setting | default | meaning |", "|---|---|---|", *lines, ""])


def commands() -> str:
    """A heading for each command, with its help and its options."""
    root: Any = get_command(app)
    return "\n".join([_COMMANDS, *_shown(root, "eos")])


def _shown(command: Any, path: str) -> Iterator[str]:
    yield f"\n## `{path}`\n"
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    below: dict[str, Any] = getattr(command, "commands", {})
    if not below:
        yield f"```text\n{' '.join([path, *map(_value, arguments), '[OPTIONS]'])}\n```\n"
    yield _help(command.help)
    if arguments or options:
        yield "\n| option | meaning |\n|---|---|"
        yield from (f"| `{_value(one)}`{{: .name }} | {_cell(one.help or '')} |" for one in arguments)
        yield from (f"| {_spelled(one)} | {_cell(one.help or '')} |" for one in options)
    yield _exits(command.epilog or "")
    for name, other in below.items():
        yield from _shown(other, f"{path} {name}")


def _value(parameter: Any) -> str:
    """The word that stands for an argument, or for the value of an option."""
    word = parameter.metavar or parameter.name.upper()
    return word if parameter.required or parameter.param_type_name == "option" else f"[{word}]"


def _spelled(option: Any) -> str:
    value = "" if option.is_flag else f" {_value(option)}"
    return ", ".join(f"`{name}{value}`{{: .name }}" for name in option.opts)


def _help(text: str) -> str:
    """A help text as Markdown: its indented lines, which are commands, as code."""
    parts = []
    for indented, group in groupby(_plain(text).splitlines(), lambda line: line.startswith("  ")):
        part = "\n".join(group)
        parts.append(f"\n```text\n{dedent(part)}\n```\n" if indented else part)
    return "\n".join(parts)


def _exits(epilog: str) -> str:
    codes = re.findall(r"^  (\d)  (.*)$", epilog, re.MULTILINE)
    return (
        "\n".join(["\nExit codes:\n", *(f"- **{code}** {meaning}" for code, meaning in codes)])
        if codes
        else ""
    )


def _plain(text: str) -> str:
    """Without the marks of rich."""
    return re.sub(r"\[/?bold\]", "", text).replace("\\[", "[")


def _cell(text: str) -> str:
    return " ".join(_plain(text).split()).replace("|", "\\|")

"""`eos init`: a project to begin with."""

from __future__ import annotations

import keyword
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from eos.cli.help import command
from eos.cli.init_files import files_of
from eos.cli.options import AppDir
from eos.cli.printing import say
from eos.errors import ConfigError
from eos.exits import ExitCode

commands = typer.Typer()


@command(commands, ExitCode.DONE, ExitCode.CONFIGURATION)
def init(
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the job: small letters, digits and '_'.")],
    app_dir: AppDir = Path(),
) -> None:
    r"""Write a project: a job that reads JSON and writes two topics, its settings, its test, and a README.

    Makes README.md, NAME.py, NAME.toml and test_NAME.py; what is there already stays as it is. The README's
    commands lead to a proven run on a Kafka of this machine.

    Examples:
      eos init orders
      eos init orders --app-dir orders
      pip install 'eos-kafka\[testing]' && pytest test_orders.py
    """
    if not (name.isidentifier() and name.isascii() and name == name.lower()) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a module. Fix: small letters, digits and '_', for example orders"
        )
    if name in sys.stdlib_module_names or (find_spec(name) and not (app_dir / f"{name}.py").exists()):
        raise ConfigError(
            f"{name!r} is a module that Python has already, here or among what is installed: {name}.py would hide it, or be "
            "hidden. Fix: another name"
        )
    texts = files_of(name)
    if there := [file for file in texts if (app_dir / file).exists()]:
        raise ConfigError(
            f"{', '.join(there)}: there already. Fix: another folder, for example --app-dir {app_dir / name}"
        )
    for file, text in texts.items():
        try:
            app_dir.mkdir(parents=True, exist_ok=True)
            (app_dir / file).write_text(text)
        except OSError as error:
            raise ConfigError(
                f"{app_dir / file} cannot be written: {error.strerror}. Fix: a folder that this user may write to (--app-dir)"
            ) from error
        say(file)
    first = [] if app_dir == Path() else [f"cd {shlex.quote(str(app_dir))}"]
    steps = [line.removeprefix("$ ") for line in texts["README.md"].splitlines() if line.startswith("$ ")]
    say("\n  ".join(["next, as README.md explains:", *first, *steps]), lines=True)

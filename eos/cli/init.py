"""`eos init`: a job, its settings and its test, to begin with."""

from __future__ import annotations

import keyword
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from eos.cli.options import AppDir
from eos.cli.texts import command, say
from eos.errors import ConfigError
from eos.exits import ExitCode

_JOB = '''"""{name}: copies what is not empty, in capitals."""

from eos import InputRecord, Job, OutputRecord


def transform(record: InputRecord) -> list[OutputRecord]:
    """A pure function of the record: it may be applied again, and `eos verify` does so."""
    if record.value is None:
        return []
    return [OutputRecord("{name}-out", record.value.upper(), key=record.key)]


job = Job(
    name="{name}",
    inputs=["{name}-in"],
    outputs=["{name}-out"],
    transform=transform,
    dead_letters="{name}-dead",  # for records that the transform raises for, with poison.policy = "dead-letter"
)


def sample_input(seed):  # for `eos prove`
    return ((b"%d" % (number % 7), b"record %d of %d" % (number, seed)) for number in range(10**9))
'''
_SETTINGS = """# Settings of {name}. All there are: eos config describe
[kafka]
bootstrap_servers = "localhost:9092"

[transaction]
interval_ms = 100 # readers of the output wait for so long; longer is cheaper

[poison]
policy = "stop" # or "dead-letter", or "skip"
"""
_TEST = '''"""{name}, on a real Kafka: pytest starts one."""

from eos.testing import KafkaCluster, assert_exactly_once
from {module} import job


def test_every_record_is_there_in_capitals_exactly_once(eos_cluster: KafkaCluster) -> None:
    eos_cluster.create_topics(job, partitions=3)
    eos_cluster.produce("{name}-in", [b"one", b"two"])
    eos_cluster.run(job)
    assert_exactly_once(job, eos_cluster, records=2)
    assert {{record.value for record in eos_cluster.read_committed("{name}-out")}} == {{b"ONE", b"TWO"}}
'''

commands = typer.Typer()


@command(commands, ExitCode.DONE, ExitCode.CONFIGURATION)
def init(
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the job: small letters, digits and '_'.")],
    app_dir: AppDir = Path(),
) -> None:
    r"""Write a job, its settings and its test, to begin with.

    Makes NAME.py, NAME.toml and test_NAME.py; what is there already stays as it is.

    Examples:
      eos init orders
      pip install 'eos-kafka\[testing]' && pytest test_orders.py
      eos local start && eos local topics orders:job
      eos run orders:job --config orders.toml --local --start earliest
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
    texts = {f"{name}.py": _JOB, f"{name}.toml": _SETTINGS, f"test_{name}.py": _TEST}
    if there := [file for file in texts if (app_dir / file).exists()]:
        raise ConfigError(
            f"{', '.join(there)}: there already. Fix: another name, or another folder (--app-dir)"
        )
    for file, text in texts.items():
        try:
            app_dir.mkdir(parents=True, exist_ok=True)
            (app_dir / file).write_text(text.format(name=name, module=name))
        except OSError as error:
            raise ConfigError(
                f"{app_dir / file} cannot be written: {error.strerror}. Fix: a folder that this user may write to (--app-dir)"
            ) from error
        say(file)
    where = "" if app_dir == Path() else f" --app-dir {app_dir}"
    say(
        f"next: pytest {app_dir / f'test_{name}.py'}; or, on a broker of this machine:\n"
        f"  eos local start && eos local topics {name}:job{where} && eos local produce {name}-in hello\n"
        f"  eos run {name}:job{where} --config {app_dir / f'{name}.toml'} --local --start earliest --until-caught-up\n"
        f"  eos show {name}-out --local",
        lines=True,
    )

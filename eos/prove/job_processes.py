"""Job processes: how the job's processes are started: with its settings, but on the trial's cluster and without the secrets of its own.

What belongs to a cluster (addresses, security, options of every client) is taken out of the configuration file, the
assignments, the environment and the mounted secrets, so that no process of a trial can reach, or give away, another one.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from eos.errors import ConfigError
from eos.identity import Kind
from eos.local import QUICK_START
from eos.local.ports import HOST
from eos.local.pyspark_home import require_pyspark
from eos.prove.fleet import Fleet
from eos.prove.runtime import EOS_RUN, PROGRAM, SPARK
from eos.prove.trial import Trial
from eos.settings import Settings, is_sensitive
from eos.settings.catalogue import SECRETS_DIR_VARIABLE, variable_of
from eos.settings.tables import KafkaSettings

_KEPT = ("producer", "consumer")  # what else [kafka] says is about its cluster
_VARIABLES = ("EOS_KAFKA__", "EOS_SQL__")
_FILES = ("kafka__", "sql__", *(name.lower() for name in _VARIABLES))
_STARTS = ("kafka.", "sql.")
_DATABASE = "sql"
_EVERY_S = "0.5"
_PYTHON_PATH = "PYTHONPATH"
# Sockets of IPv4, by which a connection's process is found.
_JAVA_OPTIONS = (*QUICK_START, "-Djava.net.preferIPv4Stack=true")


def on_cluster(settings: Settings, servers: str) -> Settings:
    """The settings with another cluster, which wants no login."""
    kept = {name: getattr(settings.kafka, name) for name in _KEPT}
    return settings.model_copy(update={"kafka": KafkaSettings(bootstrap_servers=servers, **kept)})


def fleet_of(trial: Trial, settings: Settings, servers: str, database: str | None = None) -> Fleet:
    """Processes of the job that find the cluster at ``servers``, and the database at the URL ``database``.

    Raises:
        ConfigError: the configuration file cannot be copied without what it says of its cluster.
    """
    environment: dict[str, str | None] = {
        name: None for name in os.environ if name.startswith(_VARIABLES) and not _is_kept(name)
    }
    if database is not None:
        environment[variable_of("sql.url")] = database
    if secrets := os.environ.get(SECRETS_DIR_VARIABLE):
        environment[SECRETS_DIR_VARIABLE] = str(_without_secrets(Path(secrets), trial.directory / "secrets"))
    runtime, words = trial.runtime, [sys.executable, "-m", "eos.cli"]
    if runtime is PROGRAM:
        given: dict[str, object] = {
            "kafka.bootstrap_servers": servers,
            "group": trial.job.group,
            "input.start": "earliest",
            "workers.count": 1,
        }
        environment |= _variables(settings) | {variable_of(name): str(value) for name, value in given.items()}
        words = ["sh", "-c", trial.command or ""]
    else:
        job = [trial.reference, *options_of(trial, settings, servers), "--app-dir", str(trial.app_dir)]
        words += ["run", *job] if runtime is EOS_RUN else ["spark", "run", *job, *_of_spark(trial)]
    if runtime is SPARK:
        environment |= _environment_of_spark(trial)
    return Fleet(words, trial.directory, environment, runtime=runtime)


def options_of(trial: Trial, settings: Settings, servers: str) -> list[str]:
    """Of one `eos run` or `eos spark run`: what was given, then what a trial needs."""
    words, named = list[str](), set[str]()
    for option, value in zip(trial.options[::2], trial.options[1::2], strict=True):
        name = value.partition("=")[0].strip()
        if option == "--config":
            words += [option, str(_without_cluster(Path(value), trial.directory / "settings.toml"))]
        elif not _is_of_a_cluster(name):
            words += [option, value]
            named.add(name)
    needed = {**trial.runtime.settings, "workers.count": settings.workers.count}
    given = {"kafka.bootstrap_servers": servers, **needed}
    added = [f"{name}={value}" for name, value in given.items() if name not in named]
    return [*words, "--start", "earliest", *(word for one in added for word in ("--set", one))]


def _of_spark(trial: Trial) -> list[str]:
    """Of one `eos spark run`, which goes on until it is stopped."""
    given = {
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.ui.enabled": "false",
        "spark.executor.defaultJavaOptions": " ".join(_JAVA_OPTIONS),
        # On the classpaths, for Spark copies what spark.jars names for each start of a driver and an executor.
        "spark.jars": "",
        "spark.driver.extraClassPath": ":".join(map(str, trial.connector)),
        "spark.executor.extraClassPath": ":".join(map(str, trial.connector)),
        **dict(one.split("=", 1) for one in trial.conf or ()),
    }
    again = ["--every", _EVERY_S]
    if trial.job.kind is Kind.STREAM:
        again = ["--checkpoint", str(trial.directory.absolute() / "checkpoint")]
    return [
        *("--master", trial.master, *again),
        *(word for name, value in given.items() for word in ("--conf", f"{name}={value}")),
    ]


def _environment_of_spark(trial: Trial) -> dict[str, str]:
    """Of the driver; what it starts inherits it."""
    paths = [str(trial.app_dir), *filter(None, [os.environ.get(_PYTHON_PATH)])]
    scratch = trial.directory.absolute() / "spark"
    return {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(_home(scratch)),
        "SPARK_LOCAL_DIRS": str(scratch),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_SUBMIT_OPTS": " ".join(_JAVA_OPTIONS),
        _PYTHON_PATH: os.pathsep.join(paths),  # tasks import the job's module
    }


def _home(directory: Path) -> Path:
    """A SPARK_HOME in the trial's directory: the executors of local-cluster write beneath it."""
    home = directory / "home"
    home.mkdir(parents=True)
    for one in require_pyspark().iterdir():
        (home / one.name).symlink_to(one)
    return home


def _is_of_a_cluster(name: str) -> bool:
    return name.startswith(_STARTS) and name.split(".")[1] not in _KEPT


def _is_kept(variable: str) -> bool:
    return variable.removeprefix(_VARIABLES[0]).partition("__")[0].lower() in _KEPT


def _variables(settings: Settings) -> dict[str, str]:
    """Every setting that was given, but secrets and what is of a cluster, as a variable: any program can read those."""
    given = {}
    for one in Settings.described():
        value: object = reduce(getattr, one.name.split("."), settings)
        named = settings.source_of(one.name) and one.name != "ownership.ordinal"  # which EOS_ORDINAL says
        if named and not is_sensitive(one.name) and not _is_of_a_cluster(one.name) and value is not None:
            text = json.dumps(list(value) if isinstance(value, tuple) else value, default=str)
            given[one.variable] = str(value) if isinstance(value, str | Path) else text
    return given


def _without_secrets(directory: Path, kept: Path) -> Path:
    """A directory with links to the mounted files that are not of a cluster."""
    kept.mkdir(exist_ok=True)
    for file in directory.iterdir():
        if not file.name.lower().startswith(_FILES) and not (kept / file.name).exists():
            (kept / file.name).symlink_to(file.absolute())
    return kept


def _without_cluster(config: Path, copy: Path) -> Path:
    """The configuration file; a copy, if it says something of a cluster or a database."""
    found = tomllib.loads(config.read_text(encoding="utf-8"))
    kafka = found.get("kafka", {})
    if found.pop(_DATABASE, None) is None and not kafka.keys() - set(_KEPT):
        return config
    found["kafka"] = {name: value for name, value in kafka.items() if name in _KEPT}
    text = "\n".join(_toml(found)) + "\n"
    try:
        same = tomllib.loads(text) == found
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise ConfigError(
            f"{config}: a copy without the addresses and logins of its cluster and database cannot be written. Fix: a file without "
            "[kafka] and [sql] for this proof"
        )
    copy.write_text(text, encoding="utf-8")
    return copy


def _toml(table: Mapping[str, Any], path: Sequence[str] = ()) -> Iterator[str]:
    """The lines of a table: what it holds, then the tables in it."""
    if path:
        yield f"[{'.'.join(map(_text, path))}]"
    inner = {name: value for name, value in table.items() if isinstance(value, Mapping)}
    for name, value in table.items():
        if name not in inner:
            yield f"{_text(name)} = {_value(value)}"
    for name, value in inner.items():
        yield from _toml(value, [*path, name])


def _value(value: object) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_text(name)} = {_value(one)}' for name, one in value.items())}}}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)

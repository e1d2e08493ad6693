"""Options that several commands share, and the settings and the job that they name."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from eos.base.commands import COMMAND_LINE, Started, started, started_with
from eos.cli.exit import Errors, complain
from eos.errors import ConfigError

if TYPE_CHECKING:
    from eos.job import Declaration, Job, Looping
    from eos.settings import Settings

PREFLIGHT_S = 30.0

log = logging.getLogger("eos.cli")

JobReference = Annotated[
    str, typer.Argument(metavar="MODULE:NAME", help="The job, for example jobs.refunds:job.")
]
Config = Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="TOML file of settings.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="One setting; may be repeated. Never a secret."),
]
AppDir = Annotated[
    Path,
    typer.Option(
        "--app-dir", metavar="DIR", help="Where the job's module is found; this directory if not given."
    ),
]
Start = Annotated[
    Literal["earliest", "latest"] | None,
    typer.Option(metavar="earliest|latest", help="Once: where a group without offsets begins."),
]
AdoptOffsets = Annotated[
    bool,
    typer.Option(
        "--adopt-offsets", help="Once: take over offsets of another job, mode of ownership or program."
    ),
]
Directory = Annotated[
    Path | None,
    typer.Option("--directory", metavar="DIR", help="Where its files are; .eos if not given."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it. Without it only what would be done is shown.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Debug = Annotated[
    bool,
    typer.Option("--debug", help="observe.log_level = debug: also where an error was raised."),
]
Local = Annotated[bool, typer.Option("--local", help="Use the Kafka of `eos local start`.")]


@dataclass(frozen=True, kw_only=True)
class Given:
    """Options that say a command's settings. A parameter of this class stands for all of them (`eos.cli.help.command`).

    Attributes:
        BACK: those that come behind the command's own.
    """

    BACK: ClassVar[tuple[str, ...]] = ("app_dir", "assignments")

    config: Config = None
    assignments: Assignments = None

    def settings(self, options: Mapping[str, object] | None = None) -> Settings:
        """The settings of a command: its options over everything else.

        Args:
            options: settings that have an option of their own, by dotted name; None is "not given".

        Raises:
            ConfigError: a setting is wrong, is a secret, or is given twice.
        """
        from eos.kafka.fixed import refuse_fixed
        from eos.kafka.options import refuse_wrong
        from eos.settings import Settings

        started_with(self._started())
        given = {name: value for name, value in (options or {}).items() if value is not None}
        overrides: dict[str, Any] = _assigned(self.assignments or ())
        if twice := sorted(given.keys() & overrides.keys()):
            raise ConfigError(
                f"--set {twice[0]}=…: there is an option for it, and it is given too. Fix: keep one"
            )
        overrides |= given
        settings = Settings.load(self.config, overrides, overrides_from=COMMAND_LINE)
        refuse_fixed(settings)
        refuse_wrong(settings)
        if getattr(self, "local", False):
            servers = {"kafka.bootstrap_servers": _local_brokers(settings)}
            settings = Settings.load(self.config, overrides | servers, overrides_from=COMMAND_LINE)
        elif hasattr(self, "local"):
            started_with(started()._replace(forgotten=_forgotten(settings)))
        if settings.observe.log_level == "debug":
            Errors.with_traceback = True
        return settings

    def _started(self) -> Started:
        """The words of this command line that another command needs, to mean the same job and the same cluster."""
        app_dir = getattr(self, "app_dir", Path())
        job = [getattr(self, "reference", Started().job)]
        job += [] if app_dir == Path() else ["--app-dir", str(app_dir)]
        words = ["--config", str(self.config)] if self.config else []
        words += ["--local"] if getattr(self, "local", False) else []
        return Started(shlex.join(job), tuple(words), tuple(self.assignments or ()))


@dataclass(frozen=True, kw_only=True)
class GivenCluster(Given):
    """Of a command that asks a cluster."""

    local: Local = False


@dataclass(frozen=True, kw_only=True)
class GivenJob(Given):
    """Of a command for a job."""

    reference: JobReference
    app_dir: AppDir = Path()

    def job(self) -> Job:
        """As `load_job`."""
        return load_job(self.reference, self.app_dir)

    def looping(self) -> Looping:
        """The job of any kind that a loop drives. Raises as `load_job`."""
        from eos.job import load_looping

        return load_looping(self.reference, self.app_dir.absolute())

    def declaration(self) -> Declaration:
        """As `load_declaration`."""
        return load_declaration(self.reference, self.app_dir)


@dataclass(frozen=True, kw_only=True)
class GivenJobOnCluster(GivenJob, GivenCluster):
    """Of a command that asks a cluster about a job."""


@dataclass(frozen=True, kw_only=True)
class GivenRun(GivenJobOnCluster):
    """Of a command that runs a job."""

    BACK: ClassVar[tuple[str, ...]] = ("local", "debug", *Given.BACK)

    debug: Debug = False

    def settings(self, options: Mapping[str, object] | None = None) -> Settings:
        """As of every command; with --debug at that level."""
        return super().settings({**(options or {}), "observe.log_level": "debug" if self.debug else None})


def reach(settings: Settings) -> None:
    """Let a command that would ask a cluster for long end soon where none answers, and say at which address.

    Raises:
        EosError: as `await_brokers`.
    """
    from eos.ops.check.reach import await_brokers

    await_brokers(settings)


def load_job(reference: str, app_dir: Path) -> Job:
    """The job that ``package.module:name`` names.

    Raises:
        ConfigError: there is no such module or name, or it is no Job.
    """
    from eos.job import Job
    from eos.references import load_named

    return load_named(reference, app_dir.absolute(), Job, "eos.Job")


def load_declaration(reference: str, app_dir: Path) -> Declaration:
    """The job of any kind (loop, Spark) that ``package.module:name`` names. Raises as `load_job`."""
    from eos.job import Declaration
    from eos.references import load_named

    kind: type[Declaration] = Declaration  # type: ignore[type-abstract]  # it is only asked whether an object fits
    return load_named(reference, app_dir.absolute(), kind, "job")


def check_cluster(job: Declaration, settings: Settings, *, local: bool, reference: str) -> None:
    """Look whether the cluster fits, before the first transaction, and log what is less safe than it could be.

    ``local``: it is that of ``--local``, to try things out. ``reference``: names the job.

    Raises:
        EosError: as `preflight`.
    """
    from eos.ops.check.preflight import preflight

    timeout_s = min(PREFLIGHT_S, settings.transaction.timeout_s)
    create = local_topics(reference, local=local)
    for warning in preflight(job, settings, timeout_s=timeout_s, one_machine=local, create=create):
        log.warning("preflight: %s", warning)


def local_topics(reference: str, *, local: bool) -> str:
    """The command that creates the job's topics with ``--local``; elsewhere eos has none."""
    return f"eos local topics {reference}" if local else ""


def _assigned(assignments: Iterable[str]) -> dict[str, Any]:
    from eos.settings import Settings, is_sensitive

    values: dict[str, Any] = {}
    for name, value in pairs("--set", assignments, "NAME=VALUE", "transaction.interval_ms=50"):
        if is_sensitive(name):
            known = {one.name for one in Settings.described()}
            file = f"{name}_file, or EOS_SECRETS_DIR" if f"{name}_file" in known else "EOS_SECRETS_DIR"
            raise ConfigError(
                f"--set {name}=…: a command line can be read by every user of the machine (ps). "
                f"Fix: a mounted file ({file}), or the environment"
            )
        if name in values:
            raise ConfigError(f"--set {name}=… is given twice. Fix: keep one")
        values[name] = value.strip()
    return values


def pairs(option: str, texts: Iterable[str], form: str, example: str) -> Iterator[tuple[str, str]]:
    """The names and values that the texts of a repeated option assign.

    Raises:
        ConfigError: a text is not of that form. It is not quoted: it may be a secret's value that was pasted here.
    """
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals):
            raise ConfigError(f"{option} needs {form}, for example {option} {example}")
        yield name.strip(), value


def _forgotten(settings: Settings) -> str:
    """The directory of a Kafka of `eos local start` that runs, which ``--local`` would have meant; or nothing."""
    directory = settings.local.directory
    if directory.is_dir():
        from eos.local import LocalKafka

        with suppress(ConfigError):  # the directory is not one of ours
            if LocalKafka.attach(directory) is not None:
                return str(directory.absolute())
    return ""


def _local_brokers(settings: Settings) -> str:
    from eos.local import LocalKafka

    directory = settings.local.directory
    cluster = LocalKafka.attach(directory)
    if cluster is None:
        raise ConfigError(
            f"--local: no Kafka runs in {directory.absolute()}. Fix: eos local start, or EOS_LOCAL__DIRECTORY"
        )
    complain(f"using the local Kafka at {cluster.bootstrap_servers}")
    return cluster.bootstrap_servers

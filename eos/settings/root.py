"""Settings: everything that a process was told, validated; the face of this package."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, PrivateAttr, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from eos.offsets import Partition
from eos.settings import clients, java, rules
from eos.settings.catalogue import ENV_PREFIX, NESTED, SECRETS_DIR_VARIABLE, Catalogue, Described, Free
from eos.settings.invalid import problems_of
from eos.settings.job import validated_job
from eos.settings.layers import Layer, Reader
from eos.settings.problems import Problem, config_error
from eos.settings.shown import shown
from eos.settings.tables import (
    InputSettings,
    KafkaSettings,
    LocalSettings,
    ObserveSettings,
    OwnershipSettings,
    PoisonSettings,
    ShutdownSettings,
    SparkSettings,
    TransactionSettings,
    WorkerSettings,
)

JobSettings = TypeVar("JobSettings", bound=BaseModel)

_LAYERS = "layers"
# A coordinator aborts expired transactions by a scan every 10 s, and then writes its markers.
_EXPIRY_SCAN_MS = 15_000
_POLL_SHARE = 0.8  # of max.poll.interval.ms: a member that waits longer is dropped


class Settings(BaseSettings):
    """The settings of a process. Immutable and picklable; neither ``repr`` nor ``str`` holds a secret.

    Made by `load`; the constructor itself reads neither the environment nor files.
    """

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=NESTED,
    )

    group: str | None = Field(
        default=None, description="consumer group that holds the input offsets; the job's name if not given"
    )
    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    transaction: TransactionSettings = Field(default_factory=TransactionSettings)
    ownership: OwnershipSettings = Field(default_factory=OwnershipSettings)
    input: InputSettings = Field(default_factory=InputSettings)
    poison: PoisonSettings = Field(default_factory=PoisonSettings)
    workers: WorkerSettings = Field(default_factory=WorkerSettings)
    shutdown: ShutdownSettings = Field(default_factory=ShutdownSettings)
    observe: ObserveSettings = Field(default_factory=ObserveSettings)
    spark: SparkSettings = Field(default_factory=SparkSettings)
    local: LocalSettings = Field(default_factory=LocalSettings)
    job: Free = Field(
        default_factory=dict, repr=False, description="the job's own settings, checked by its model"
    )

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def load(
        cls,
        config: Path | None = None,
        overrides: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Settings:
        """Read all sources: command line, environment, mounted secret files, TOML, defaults; first wins.

        Args:
            config: a TOML file.
            overrides: the command line's values, dotted or nested; ``None`` in it means "not given".
            environ: instead of ``os.environ``.

        Raises:
            ConfigError: one message that lists every problem: the name as it was written, what is wrong,
                and the fix.
        """
        environ = os.environ if environ is None else environ
        catalogue = Catalogue(cls)
        reader = Reader(cls, catalogue)
        layers = [reader.command_line(overrides or {}), reader.environment(environ)]
        if directory := environ.get(SECRETS_DIR_VARIABLE):
            layers.append(reader.secret_files(Path(directory)))
        if config is not None:
            layers.append(reader.toml(config))
        layers.append(reader.referenced_secrets(layers))
        origins = _origins(layers)
        problems = list(reader.problems)
        settings: Settings | None = None
        try:
            settings = cls.model_validate({_LAYERS: layers})  # runs the constructor, and so the sources below
        except ValidationError as error:
            problems += _translated(error, catalogue, origins)
        if settings is not None:
            problems += [_placed(problem, origins) for problem in rules.contradictions(settings)]
        if settings is None or problems:
            # Outside of the except block: a chained error would print what was given.
            raise config_error(problems)
        settings._origins.update(origins)  # noqa: SLF001 - of this class
        return settings

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The layers that `load` read, and nothing that pydantic-settings would read by itself."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        layers: Sequence[Layer] = ()
        if isinstance(init_settings, InitSettingsSource):
            layers = init_settings.init_kwargs.pop(_LAYERS, ())
        return (*layers, init_settings)

    @classmethod
    def described(cls) -> list[Described]:
        """Every setting with its variable, default and description: what help texts print."""
        return Catalogue(cls).described()

    def group_for(self, job_name: str) -> str:
        """The consumer group: as set, else the job's name."""
        return self.group or job_name

    @property
    def ordinal(self) -> int:
        """The ordinal of this instance; a single one needs none said and is 0."""
        return self.ownership.ordinal or 0

    @property
    def open_deadline_s(self) -> float:
        """Seconds to wait for another owner's transaction to end before the offsets can be read.

        The coordinator ends it after its timeout; a group member must poll again before that costs it
        its membership.
        """
        wait_ms: float = self.transaction.timeout_ms + _EXPIRY_SCAN_MS
        if self.ownership.mode == "group":
            wait_ms = min(wait_ms, self.ownership.max_poll_interval_ms * _POLL_SHARE)
        return wait_ms / 1000

    @property
    def twin_wait_s(self) -> float:
        """Seconds that a fenced Spark task waits for its twin; the twin's transaction lives no longer than its timeout."""
        return (self.spark.twin_wait_ms or self.transaction.timeout_ms) / 1000

    def for_worker(self, index: int) -> Settings:
        """The settings of one of this machine's ``workers.count`` processes: ordinal x count + index.

        Partitions given by list are dealt out; by count, the instances are multiplied.
        """
        count, ownership = self.workers.count, self.ownership
        changes: dict[str, Any] = {"ordinal": self.ordinal * count + index}
        if ownership.instances is not None:
            changes["instances"] = ownership.instances * count
        if ownership.partitions:
            changes["partitions"] = ownership.partitions[index::count]
        return self.model_copy(
            update={
                "ownership": ownership.model_copy(update=changes),
                "workers": self.workers.model_copy(update={"count": 1}),
            }
        )

    def job_settings(self, model: type[JobSettings]) -> JobSettings:
        """The table ``[job]``, validated by the job's own model.

        Raises:
            ConfigError: naming each ``job.<field>`` that is unknown or wrong.
        """
        return validated_job(self.job, model, self._origins)

    def client_config(self) -> dict[str, Any]:
        """For admin clients and raw readers: cluster, security, ``[kafka.client]``. Holds secrets.

        Raises:
            ConfigError: no brokers are named.
        """
        return clients.client_config(self)

    def producer_config(self, transactional_id: str) -> dict[str, Any]:
        """For the transactional producer of a shard. Holds secrets.

        Raises:
            ConfigError: no brokers are named.
        """
        return clients.producer_config(self, transactional_id)

    def consumer_config(
        self, group: str, ordinal: int | None, inputs: Iterable[Partition] = ()
    ) -> dict[str, Any]:
        """For a session's consumer, by ownership and protocol; see `clients.consumer_config`. Holds secrets.

        Raises:
            ConfigError: no brokers are named.
        """
        return clients.consumer_config(self, group, ordinal, inputs)

    def java_client_options(self) -> dict[str, str]:
        """For a Java client (Spark's Kafka connector) of the same cluster. Holds secrets.

        Raises:
            ConfigError: no brokers are named, or an option of ``[kafka.client]`` that protects the connection has
                no Java counterpart that eos can render.
        """
        return java.java_client_options(self)

    def shown(self) -> dict[str, Any]:
        """Nested tables of `Shown` (value, source) without secrets: what ``eos config show`` prints."""
        return shown(self, self._origins)


def _origins(layers: Sequence[Layer]) -> dict[str, str]:
    origins: dict[str, str] = {}
    for layer in reversed(layers):
        origins |= layer.origins
    return origins


def _translated(error: ValidationError, catalogue: Catalogue, origins: Mapping[str, str]) -> list[Problem]:
    fields = catalogue.fields

    def describe(name: str) -> str:
        field = fields.get(name)
        return f"correct it ({field.description})" if field is not None and field.description else ""

    return problems_of(error, origin=lambda name: origins.get(name, ""), describe=describe)


def _placed(problem: Problem, origins: Mapping[str, str]) -> Problem:
    return Problem(problem.name, problem.what, problem.fix, problem.where or origins.get(problem.name, ""))

"""Settings: what a process is configured with, validated; the face of this package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, Field, PrivateAttr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from eos.settings import rules
from eos.settings.catalogue import ENV_PREFIX, NESTED, SECRETS_DIR_VARIABLE, Catalogue, Described
from eos.settings.job import validated_job
from eos.settings.problems import config_error, nearest, problems_of
from eos.settings.shown import shown
from eos.settings.sources import Sources, Values, meant
from eos.settings.tables import (
    InputSettings,
    KafkaSettings,
    LocalSettings,
    ObserveSettings,
    OwnershipSettings,
    PoisonSettings,
    ShutdownSettings,
    SparkSettings,
    SqlSettings,
    TransactionSettings,
    WorkerSettings,
    sendable_group,
)

JobSettings = TypeVar("JobSettings", bound=BaseModel)

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

    group: Annotated[str | None, AfterValidator(sendable_group)] = Field(
        default=None,
        description="consumer group that holds the input offsets (group.id); the job's name if not given",
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
    sql: SqlSettings = Field(default_factory=SqlSettings)
    local: LocalSettings = Field(default_factory=LocalSettings)
    job: dict[str, Any] = Field(
        default_factory=dict, repr=False, description="the job's own settings, checked by its model"
    )

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _replaces_dead: bool = PrivateAttr(default=False)

    @classmethod
    def load(
        cls,
        config: Path | str | None = None,
        overrides: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        *,
        overrides_from: str = "override",
    ) -> Settings:
        """Read all sources: command line, environment, mounted secret files, TOML, defaults; first wins.

        Args:
            config: a TOML file.
            overrides: values over all others, dotted or nested; ``None`` in it means "not given".
            environ: instead of ``os.environ``.
            overrides_from: how errors, and `eos config show`, name where the overrides come from.

        Raises:
            ConfigError: one message that lists every problem: the name as it was written, what is wrong,
                and the fix.
        """
        environ = os.environ if environ is None else environ
        sources = Sources(cls)
        given: Values = {} if config is None else sources.toml(Path(config))
        if directory := environ.get(SECRETS_DIR_VARIABLE):
            given |= sources.secret_files(Path(directory))
        given |= sources.environment(environ)
        given |= sources.overrides(overrides or {}, overrides_from)
        given |= sources.referenced_secrets(given)
        origins = {name: one.source for name, one in given.items()}
        settings: Settings | None = None
        try:
            settings = cls.model_validate(sources.nested(given))
        except ValidationError as error:
            problems = problems_of(
                error, origin=partial(_origin, origins), fix_for=partial(_fix, Catalogue(cls))
            )
        else:
            broken = rules.contradictions(
                settings.kafka, settings.transaction, settings.ownership, settings.workers.count
            )
            problems = [replace(problem, where=origins.get(problem.name, "")) for problem in broken]
        problems = [*sources.problems, *problems]
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
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What `load` has read, and nothing that pydantic-settings would read by itself."""
        del settings_cls
        return (init_settings,)

    @classmethod
    def described(cls) -> list[Described]:
        """Every setting with its variable, default and description: what help texts print."""
        return Catalogue(cls).described()

    def group_for(self, job_name: str) -> str:
        return self.group or job_name

    @property
    def ordinal(self) -> int:
        """The ordinal of this instance; 0 for a single one, which needs none."""
        return self.ownership.ordinal or 0

    @property
    def open_timeout_s(self) -> float:
        """Seconds to wait for another owner's transaction to end before the offsets can be read.

        The coordinator ends it after its timeout; a group member must poll again before that costs it
        its membership.
        """
        wait_ms = self.transaction.timeout_ms + _EXPIRY_SCAN_MS
        if self.ownership.mode == "group":
            return min(wait_ms, self.ownership.max_poll_interval_ms * _POLL_SHARE) / 1000
        return wait_ms / 1000

    @property
    def held_back_timeout_s(self) -> float:
        """Seconds to wait for a transaction of another writer, which its coordinator ends after its own timeout."""
        return (self.input.held_back_deadline_ms or self.transaction.timeout_ms + _EXPIRY_SCAN_MS) / 1000

    @property
    def twin_wait_s(self) -> float:
        """Seconds that a fenced Spark task waits for its twin; the twin's transaction lives no longer than its timeout."""
        return (self.spark.twin_wait_ms or self.transaction.timeout_ms) / 1000

    def once_started(self) -> Settings:
        """The settings of a process that joins a job which runs already: what is said once was for the job's first start.

        Where the offsets are gone now, the input topic was deleted and created anew, or the group was deleted. Where another program has
        committed, it has done so since.
        """
        input_ = self.input.model_copy(update={"start": "fail"})
        ownership = self.ownership.model_copy(update={"adopt_offsets": False})
        return self.model_copy(update={"input": input_, "ownership": ownership})

    @property
    def replaces_dead(self) -> bool:
        """Whether this process replaces one that a signal has ended; see `eos.crashes.suspects`."""
        return self._replaces_dead

    def of_replacement(self) -> Settings:
        """The settings of a process that replaces one that a signal has ended."""
        copy = self.model_copy()
        copy._replaces_dead = True  # noqa: SLF001 - of this class
        return copy

    def for_worker(self, index: int) -> Settings:
        """The settings of one of this machine's ``workers.count`` processes: ordinal x count + index.

        Partitions given by list are divided; by count, the instances are multiplied.
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

    def source_of(self, name: str) -> str:
        """The source that gave a setting, by its dotted name; "" for a default."""
        return self._origins.get(name, "")

    def shown(self) -> dict[str, Any]:
        """Nested tables of `Shown` (value, source) without secrets: what ``eos config show`` prints."""
        return shown(self, self._origins)


def _origin(origins: Mapping[str, str], name: str) -> str:
    """The source of a name, of what is inside it, or of what it is inside of."""
    return next(
        (source for other, source in origins.items() if _inside(other, name) or _inside(name, other)), ""
    )


def _inside(name: str, table: str) -> bool:
    return f"{name}.".startswith(f"{table}.")


def _fix(catalogue: Catalogue, name: str, verb: str) -> str:
    if name in catalogue.tables:
        return "give the settings inside it"
    field = next((field for known, field in catalogue.fields.items() if _inside(name, known)), None)
    return f"{verb} ({field.description})" if field is not None else meant(nearest(name, catalogue.names()))

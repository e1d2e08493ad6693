"""Binding: a job and the settings of a process make the transform that is applied."""

from __future__ import annotations

from typing import Protocol, TypeVar

from pydantic import BaseModel

from eos.errors import ConfigError
from eos.settings.root import Settings


class HasSettings(Protocol):
    """A job of any kind: its name, and the model of its own settings if it declares one."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> type[BaseModel] | None: ...


T_co = TypeVar("T_co", covariant=True)


class _Bindable(HasSettings, Protocol[T_co]):
    def bound(self, settings: BaseModel | None = None) -> T_co: ...


def bind(job: _Bindable[T_co], settings: Settings) -> T_co:
    """The job's transform, with its `own_settings`."""
    return job.bound(own_settings(job, settings))


def own_settings(job: HasSettings, settings: Settings) -> BaseModel | None:
    """The job's own settings: the table ``[job]``, validated; None if the job declares no model.

    Raises:
        ConfigError: a value of ``[job]`` is wrong, or given to a job that declares no settings.
    """
    if job.settings is not None:
        return settings.job_settings(job.settings)
    if settings.job:
        raise ConfigError(
            f"[job] has {', '.join(sorted(settings.job))}, but job {job.name!r} declares no settings. "
            f"Fix: remove them, or {type(job).__name__}(settings=…)"
        )
    return None

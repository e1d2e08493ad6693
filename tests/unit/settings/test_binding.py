"""A job bound to the settings of a process: its own table is validated, or refused where it has none."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from eos.errors import ConfigError
from eos.job import Job
from eos.records import InputRecord, OutputRecord
from eos.settings.binding import bind
from eos.transform import Transform
from tests.support.settings import settings_of


class Own(BaseModel):
    suffix: str = "!"


def job(model: type[BaseModel] | None) -> Job:
    def copied(record: InputRecord, suffix: str = "") -> list[OutputRecord]:
        return [OutputRecord("out", (record.value or b"") + suffix.encode())]

    def factory(own: Own) -> Transform:
        return lambda record: copied(record, own.suffix)

    if model is None:
        return Job(name="j", inputs=["in"], outputs=["out"], transform=copied)
    return Job(name="j", inputs=["in"], outputs=["out"], transform_factory=factory, settings=model)


def outputs(model: type[BaseModel] | None, **overrides: object) -> list[bytes | str | None]:
    settings = settings_of(**{f"job.{name}": value for name, value in overrides.items()})
    return [out.value for out in bind(job(model), settings).record(InputRecord("in", 0, 0, None, b"v"))]


def test_own_settings_reach_the_transform() -> None:
    assert outputs(Own, suffix="?") == [b"v?"]
    assert outputs(Own) == [b"v!"]
    assert outputs(None) == [b"v"]


def test_own_settings_that_the_job_does_not_have_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"job\.sufix.*suffix"):
        outputs(Own, sufix="?")
    with pytest.raises(ConfigError, match=r"\[job\] has suffix, but job 'j' declares no settings"):
        outputs(None, suffix="?")

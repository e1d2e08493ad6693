"""The job's own table and the job's own model."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, Field, SecretStr, field_validator

from eos.errors import ConfigError
from eos.settings import Settings
from tests.support.settings import settings_of


class Limits(BaseModel):
    max_minor_units: int = Field(default=1_000, ge=1)


class RefundSettings(BaseModel):
    currencies: list[str] = Field(default=["EUR"], description="currencies that are refunded")
    limits: Limits = Limits()
    label: str = ""
    api_token: SecretStr | None = None

    @field_validator("label")
    @classmethod
    def _short(cls, value: str) -> str:
        if len(value) > 5:
            msg = "is longer than 5 characters. Fix: shorten it"
            raise ValueError(msg)
        return value


def test_the_table_comes_from_all_sources(tmp_path: Path) -> None:
    config = tmp_path / "x.toml"
    config.write_text("[job]\ncurrencies = ['EUR', 'SEK']\nlimits.max_minor_units = 5\nlabel = 'toml'")
    (tmp_path / "job__api_token").write_text("S3CR3T\n")
    environ = {"EOS_JOB__LABEL": "[x]", "EOS_SECRETS_DIR": str(tmp_path)}
    found = Settings.load(config, environ=environ).job_settings(RefundSettings)
    assert found.currencies == ["EUR", "SEK"]
    assert found.limits.max_minor_units == 5
    assert found.label == "[x]"
    assert found.api_token == SecretStr("S3CR3T")


def test_lists_and_tables_come_from_variables_as_json() -> None:
    environ = {"EOS_JOB__CURRENCIES": '["SEK"]', "EOS_JOB__LIMITS": '{"max_minor_units": 7}'}
    found = Settings.load(environ=environ).job_settings(RefundSettings)
    assert (found.currencies, found.limits.max_minor_units) == (["SEK"], 7)


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("EOS_JOB__LIMITS__MAX_MINOR_UNITS", "0", "job.limits.max_minor_units (environment EOS_JOB__LIMITS"),
        ("EOS_JOB__LABEL", "far too long", "is longer than 5 characters. Fix: shorten it"),
        ("EOS_JOB__LABLE", "x", "did you mean job.label?"),
        ("EOS_JOB__LIMITS__MAX_MINOR_UNIT", "1", "did you mean job.limits.max_minor_units?"),
        ("EOS_JOB__CURRENCIES", "EUR", "currencies that are refunded"),
    ],
)
def test_a_wrong_setting_of_the_job_is_named(variable: str, value: str, expected: str) -> None:
    settings = Settings.load(environ={variable: value})
    with pytest.raises(ConfigError) as caught:
        settings.job_settings(RefundSettings)
    assert expected in str(caught.value)
    assert str(caught.value).startswith("job.")
    assert caught.value.__context__ is None


def test_values_of_the_job_are_not_shown_since_only_the_job_knows_its_secrets() -> None:
    class Pin(BaseModel):
        pin: int

    with pytest.raises(ConfigError, match=r"job\.pin.*not a whole number") as caught:
        Settings.load(environ={"EOS_JOB__PIN": "S3CR3T"}).job_settings(Pin)
    assert "S3CR3T" not in str(caught.value)


def test_a_missing_setting_of_the_job_is_named() -> None:
    class Needs(BaseModel):
        currency: str = Field(description="the one currency")

    with pytest.raises(ConfigError, match=r"job\.currency: is missing.*the one currency"):
        settings_of().job_settings(Needs)

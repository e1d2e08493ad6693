"""`--set`, `--local` and `eos config`: settings from the command line, and shown without secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from eos.exits import ExitCode
from eos.settings import HIDDEN, Settings
from tests.support.command_line import Eos

_SECRET = "S3CR3T"  # noqa: S105 - what must never be printed
_REPOSITORY = Path(__file__).parents[3]


def _shown(eos: Eos, *arguments: str) -> dict[str, tuple[str, str]]:
    """Per name, (value, source)."""
    ended = eos("config", "show", *arguments)
    assert ended.code == ExitCode.DONE
    split = [line.split(" = ", 1) for line in ended.out.splitlines()]
    values = {name: rest.rsplit("  # ", 1) for name, rest in split}
    return {name: (value.strip(), source) for name, (value, source) in values.items()}


def test_every_setting_is_shown_with_its_source(
    eos: Eos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "job.toml"
    config.write_text("[transaction]\ninterval_ms = 20\nmax_records = 7\n")
    monkeypatch.setenv("EOS_GROUP", "mine")
    shown = _shown(eos, "--config", str(config), "--set", "transaction.interval_ms=50")
    assert shown["transaction.interval_ms"] == ("50", "command line")
    assert shown["transaction.max_records"] == ("7", f"toml {config}")
    assert shown["group"] == ('"mine"', "environment EOS_GROUP")
    assert shown["kafka.security_protocol"] == ('"PLAINTEXT"', "default")
    tables_of_free_names = {"kafka.client", "kafka.producer", "kafka.consumer", "spark.client", "job"}
    assert {one.name for one in Settings.described()} - tables_of_free_names <= shown.keys()


def test_only_what_was_changed_is_shown_on_demand(eos: Eos) -> None:
    assert _shown(eos, "--changed", "--set", "workers.count=3") == {"workers.count": ("3", "command line")}


def test_secrets_are_not_shown(eos: Eos, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EOS_KAFKA__SASL_PASSWORD", _SECRET)
    monkeypatch.setenv("EOS_KAFKA__SASL_USERNAME", "me")
    monkeypatch.setenv("EOS_KAFKA__SASL_MECHANISM", "PLAIN")
    monkeypatch.setenv("EOS_KAFKA__SECURITY_PROTOCOL", "SASL_SSL")
    ended = eos("config", "show")
    assert ended.code == ExitCode.DONE
    assert HIDDEN in ended.out
    assert _SECRET not in ended.out + ended.err


@pytest.mark.parametrize(
    "name",
    ["kafka.sasl_password", "kafka.client.sasl.jaas.config", "job.api_token", "kafka.ssl_key_password"],
)
@pytest.mark.parametrize(
    "command", [["config", "show"], ["run", "a:b"], ["verify", "a:b"], ["shard-id", "a:b"]]
)
def test_a_secret_on_the_command_line_is_refused(eos: Eos, command: list[str], name: str) -> None:
    ended = eos(*command, "--set", f"{name}={_SECRET}")
    assert ended.code == ExitCode.CONFIGURATION
    assert name in ended.err
    assert "ps" in ended.err
    assert _SECRET not in ended.out + ended.err


def test_the_file_of_a_secret_may_be_named_on_the_command_line(eos: Eos, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(_SECRET)
    ended = eos(
        "config",
        "show",
        "--set",
        f"kafka.ssl_key_password_file={file}",
        "--set",
        "kafka.security_protocol=SSL",
    )
    assert ended.code == ExitCode.DONE
    assert _SECRET not in ended.out + ended.err


def test_librdkafka_options_are_given_by_their_dotted_names(eos: Eos) -> None:
    assert _shown(eos, "--set", "kafka.producer.linger.ms=7")["kafka.producer.linger.ms"] == (
        '"7"',
        "command line",
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--set", "transaction.interval=5"], "transaction.interval_ms"),
        (["--set", "transaction.interval_ms=soon"], "transaction.interval_ms"),
        (["--set", "transaction.interval_ms=1", "--set", "transaction.interval_ms=2"], "given twice"),
        (["--set", "nonsense"], "NAME=VALUE"),
        (["--set", "kafka.producer.acks=1"], "acks is fixed by eos"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_a_wrong_setting_is_named(eos: Eos, arguments: list[str], named: str) -> None:
    ended = eos("config", "show", *arguments)
    assert (ended.code, ended.out) == (ExitCode.CONFIGURATION, "")
    assert named in ended.err


def test_an_option_and_a_setting_that_contradict_each_other_are_refused(eos: Eos) -> None:
    ended = eos("run", "a:b", "--workers", "2", "--set", "workers.count=3")
    assert ended.code == ExitCode.CONFIGURATION
    assert "workers.count" in ended.err


def test_every_setting_is_described_with_its_variable(eos: Eos) -> None:
    out = eos("config", "describe").out
    for one in Settings.described():
        assert f"{one.name} = " in out
        assert one.variable in out


def test_a_part_of_the_settings_is_described(eos: Eos) -> None:
    lines = eos("config", "describe", "poison").out.splitlines()
    assert lines[0].startswith('poison.policy = "stop"')
    assert eos("config", "describe", "nonsense").code == ExitCode.CONFIGURATION
    assert "Fix: eos config describe transaction\n" in eos("config", "describe", "tranaction").err


def test_a_directory_in_the_place_of_a_configuration_file_is_named(eos: Eos, tmp_path: Path) -> None:
    ended = eos("config", "show", "--config", str(tmp_path))
    assert ended.code == ExitCode.CONFIGURATION
    assert f"{tmp_path}: is a directory. Fix: name a TOML file" in ended.err


def test_the_file_of_a_secret_is_advised_only_where_there_is_such_a_setting(eos: Eos) -> None:
    assert "kafka.sasl_password_file" in eos("config", "show", "--set", "kafka.sasl_password=x").err
    assert "a mounted file (EOS_SECRETS_DIR)" in eos("config", "show", "--set", "job.token=x").err


def test_a_misspelt_client_option_is_named_with_where_it_was_given(eos: Eos) -> None:
    ended = eos("config", "show", "--set", "kafka.producer.lingr.ms=5")
    assert ended.code == ExitCode.CONFIGURATION
    assert (
        "kafka.producer.lingr.ms (command line): librdkafka has no such option. Fix: did you mean"
        in ended.err
    )


def test_no_local_kafka_is_an_error_that_says_how_to_start_one(eos: Eos, tmp_path: Path) -> None:
    ended = eos("shard-id", "a:b", "--local", "--set", f"local.directory={tmp_path}")
    assert ended.code == ExitCode.CONFIGURATION
    assert "eos local start" in ended.err


def test_the_example_configuration_is_valid(eos: Eos) -> None:
    shown = _shown(eos, "--config", str(_REPOSITORY / "conf" / "refunds.toml"), "--changed")
    assert "kafka.bootstrap_servers" not in shown
    ended = eos(
        "shard-id",
        "jobs.refunds:job",
        "--app-dir",
        str(_REPOSITORY),
        "--config",
        str(_REPOSITORY / "conf/refunds.toml"),
    )
    assert ended.out.splitlines() == ["refunds.refunds.i.0", "refunds.refunds.i.1"]

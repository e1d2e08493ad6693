"""The processes of a trial have the job's settings, and neither address nor login of another cluster."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from eos.errors import ConfigError
from eos.job import Job
from eos.kafka.config import client_config
from eos.prove.job_processes import fleet_of, on_cluster, options_of
from eos.prove.trial import Trial
from eos.settings import Settings
from tests.support import settings as support
from tests.support.patience import PATIENCE_S

SECRET = "hush-hush"  # noqa: S105 - that is the test
SERVERS = "127.0.0.1:1"
CONFIG = f"""
group = "copies"

[kafka]
bootstrap_servers = "broker.example:9093"
security_protocol = "SASL_SSL"
sasl_mechanism = "PLAIN"
sasl_username = "copier"
sasl_password = "{SECRET}"

[kafka.producer]
"linger.ms" = 7

[transaction]
interval_ms = 50

[job]
rates = [1, 2.5]
names = {{ a = "ä \\"b\\"", on = true }}
"""
job = Job(name="copy", inputs=["in"], outputs=["out"], transform=lambda _: [])


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    config = tmp_path / "job.toml"
    config.write_text(CONFIG)
    return Trial(
        reference="copying:job",
        job=job.identity(support.settings_of()),
        app_dir=tmp_path,
        options=[
            *("--config", str(config), "--set", "kafka.security_protocol=SASL_SSL"),
            *("--set", "kafka.bootstrap_servers=broker.example:9093", "--set", "transaction.interval_ms=40"),
        ],
        seed=1,
        faults=1,
        minutes=None,
        kinds=[],
        brokers=1,
        partitions=1,
        rate=1,
        directory=tmp_path,
    )


def settings_of(trial: Trial) -> Settings:
    return Settings.load(Path(trial.options[1]), {"ownership.ordinal": 0}, {})


def test_a_broker_that_the_command_line_names_is_not_the_one_of_the_trials_processes(trial: Trial) -> None:
    """They would torment, and write to, a cluster that is in use."""
    words = options_of(trial, settings_of(trial), SERVERS)
    named = [word for word in words if word.startswith("kafka.")]
    assert named == [f"kafka.bootstrap_servers={SERVERS}"]
    assert "transaction.interval_ms=40" in words


def test_the_configuration_is_copied_without_what_it_says_of_its_cluster(trial: Trial) -> None:
    words = options_of(trial, settings_of(trial), SERVERS)
    copy = Path(words[words.index("--config") + 1])
    expected = tomllib.loads(CONFIG)
    expected["kafka"] = {"producer": {"linger.ms": 7}}
    assert tomllib.loads(copy.read_text()) == expected
    assert SECRET not in copy.read_text()


def test_a_configuration_without_a_cluster_is_used_as_it_is(trial: Trial) -> None:
    config = Path(trial.options[1])
    config.write_text('group = "copies"\n')
    assert str(config) in options_of(trial, settings_of(trial), SERVERS)


def test_the_trials_own_clients_log_in_nowhere(trial: Trial) -> None:
    found = client_config(on_cluster(settings_of(trial), SERVERS))
    assert found == {"bootstrap.servers": SERVERS, "security.protocol": "PLAINTEXT"}


def test_a_program_inherits_neither_login_nor_mounted_secret(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = tmp_path / "mounted"
    secrets.mkdir()
    (secrets / "kafka__sasl_password").write_text(SECRET)
    (secrets / "job__token").write_text("the job's own")
    monkeypatch.setenv("EOS_SECRETS_DIR", str(secrets))
    monkeypatch.setenv("EOS_KAFKA__SASL_PASSWORD", SECRET)
    fleet = fleet_of(replace(trial, command='env; ls "$EOS_SECRETS_DIR"'), settings_of(trial), SERVERS)
    instance = fleet.start(0)
    assert instance.wait(PATIENCE_S) == 0
    written = instance.log.read_text()
    fleet.kill()
    assert SECRET not in written
    assert "sasl" not in written.lower()
    assert f"EOS_KAFKA__BOOTSTRAP_SERVERS={SERVERS}" in written
    assert "job__token" in written


def test_a_program_finds_the_database_of_the_trial_and_no_other_one(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, theirs = (
        "postgresql://eos@127.0.0.1:1/postgres",
        f"postgresql://owner:{SECRET}@database.example/books",
    )
    secrets, mounted = tmp_path / "mounted", tmp_path / "url"
    secrets.mkdir()
    (secrets / "sql__url").write_text(theirs)
    mounted.write_text(theirs)
    monkeypatch.setenv("EOS_SECRETS_DIR", str(secrets))
    monkeypatch.setenv("EOS_SQL__URL", theirs)
    monkeypatch.setenv("EOS_SQL__URL_FILE", str(mounted))
    given = replace(trial, command='env; ls "$EOS_SECRETS_DIR"', options=[])
    fleet = fleet_of(given, Settings.load(None, {"ownership.ordinal": 0}, {}), SERVERS, own)
    instance = fleet.start(0)
    assert instance.wait(PATIENCE_S) == 0
    written = instance.log.read_text()
    fleet.kill()
    assert f"EOS_SQL__URL={own}" in written
    assert SECRET not in written
    assert str(mounted) not in written
    assert "sql__url" not in written


def test_a_database_that_the_settings_name_is_not_the_one_of_the_trials_processes(trial: Trial) -> None:
    config = Path(trial.options[1])
    config.write_text(
        f'group = "copies"\n[sql]\nurl = "postgresql://owner:{SECRET}@database.example/books"\n'
    )
    options = [*trial.options, "--set", "sql.url_file=/run/secrets/url"]
    words = options_of(replace(trial, options=options), settings_of(trial), SERVERS)
    assert not [word for word in words if word.startswith("sql.")]
    copy = tomllib.loads(Path(words[words.index("--config") + 1]).read_text())
    assert copy["group"] == "copies"
    assert "sql" not in copy


def test_a_configuration_that_cannot_be_copied_is_refused(trial: Trial) -> None:
    Path(trial.options[1]).write_text('[kafka]\nsecurity_protocol = "SSL"\n[job]\nname = "\\u007f"\n')
    with pytest.raises(ConfigError, match=r"without \[kafka\]"):
        options_of(trial, settings_of(trial), SERVERS)

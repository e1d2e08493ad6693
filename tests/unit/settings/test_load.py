"""The order of sources, and names that no setting has."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any, get_args

import pytest

from eos.errors import ConfigError
from eos.settings import Settings
from eos.settings.catalogue import Catalogue
from eos.settings.sources import Sources
from tests.support.settings import settings_of

CATALOGUE = Catalogue(Settings)
DESCRIBED = {one.name: one for one in Settings.described()}


def load(environ: dict[str, str] | None = None, **rest: Any) -> Settings:
    return Settings.load(environ=environ or {}, **rest)


def problem(environ: dict[str, str] | None = None, **rest: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(environ, **rest)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None  # a chained pydantic error would print the input
    return str(caught.value)


def toml(path: Path, text: str) -> Path:
    file = path / "refunds.toml"
    file.write_text(text, encoding="utf-8")
    return file


def at(settings: Settings, name: str) -> object:
    value: object = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def test_without_any_source_the_defaults_hold() -> None:
    settings = load()
    for name, described in DESCRIBED.items():
        assert at(settings, name) == described.default, name


def test_the_real_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EOS_GROUP", "from-the-process")
    assert Settings.load().group == "from-the-process"


def test_the_constructor_itself_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EOS_GROUP", "stray")
    assert Settings().group is None


def test_command_line_over_environment_over_secret_files_over_toml_over_defaults(tmp_path: Path) -> None:
    config = toml(
        tmp_path, "[workers]\ncount = 2\nmax_restarts = 2\nrestart_backoff_ms = 2\n[shutdown]\ngrace_ms = 2"
    )
    mounted = tmp_path / "secrets"
    mounted.mkdir()
    for name in ("workers__count", "workers__max_restarts", "workers__restart_backoff_ms"):
        (mounted / name).write_text("3\n")
    environ = {"EOS_SECRETS_DIR": str(mounted), "EOS_WORKERS__COUNT": "4", "EOS_WORKERS__MAX_RESTARTS": "4"}
    settings = load(environ, config=config, overrides={"workers.count": 5})
    assert settings.workers.model_dump() == {
        "count": 5,
        "max_restarts": 4,
        "restart_backoff_ms": 3,
        "spare": True,
    }
    assert settings.shutdown.grace_ms == 2
    assert settings.input.fetch_records == 1_000
    shown = settings.shown()
    assert shown["workers"]["count"] == (5, "override")
    assert shown["workers"]["max_restarts"] == (4, "environment EOS_WORKERS__MAX_RESTARTS")
    assert shown["workers"]["restart_backoff_ms"] == (3, f"secret file {mounted}/workers__restart_backoff_ms")
    assert shown["shutdown"]["grace_ms"] == (2, f"toml {config}")
    assert shown["input"]["fetch_records"] == (1_000, "default")


def test_overrides_are_dotted_or_nested_and_none_means_not_given() -> None:
    nested = load(
        overrides={"kafka": {"consumer": {"fetch": {"min.bytes": 1}}}, "group": None, "workers.count": None}
    )
    dotted = load(overrides={"kafka.consumer.fetch.min.bytes": 1})
    assert nested == load(overrides={"kafka.consumer": {"fetch.min.bytes": 1}})
    assert nested.kafka == dotted.kafka
    assert nested.group is None
    assert nested.workers.count == 1


def test_an_empty_variable_counts_as_not_set_but_its_name_is_checked() -> None:
    assert load({"EOS_GROUP": "", "EOS_KAFKA__CLIENT": "", "EOS_JOB": ""}).group is None
    assert load({"EOS_JOB__PREFIX": ""}).job == {"prefix": ""}  # only the job knows what empty means to it
    assert "EOS_GRUOP" in problem({"EOS_GRUOP": ""})


# Text is taken as it is, also what looks like JSON, a number or a list.
TEXTS = ["x", "a:1,b:2", "0123", "true", "[x", '{"a": 1}', "#!;=%"]


def samples(name: str) -> list[tuple[str, object]]:
    """Texts for a variable, each with the value that it means; every type of setting has a row here."""
    annotation = CATALOGUE.fields[name].annotation
    names = str(annotation)
    if name in SPECIAL:
        return SPECIAL[name]
    if "Literal" in names:
        choices = [choice for choice in _choices(annotation) if isinstance(choice, str)]
        return [(spelled, choice) for choice in choices for spelled in (choice, choice.lower())]
    if "bool" in names:
        return [("true", True), ("false", False), ("1", True), ("0", False)]
    if "int" in names:
        return [("1000", 1_000), ("3000", 3_000)]
    if "Path" in names:
        return [(text, Path(text)) for text in TEXTS]
    assert "str" in names or "SecretStr" in names, f"{name}: no sample for {names}"
    return [(text, text) for text in TEXTS]


SPECIAL: dict[str, list[tuple[str, object]]] = {
    "kafka.bootstrap_servers": [("x:1", "x:1"), ("a:1,b:2", "a:1,b:2")],
    "group": [(text, text) for text in TEXTS],
    "ownership.ordinal": [("0", 0), ("7", 7), ("refunds-3", 3)],
    "ownership.partitions": [("a:0,b.c:1", ("a:0", "b.c:1")), ('["a:0"]', ("a:0",))],
    "local.brokers": [("1", 1), ("3", 3)],
    "workers.count": [("1", 1), ("16", 16)],
    "kafka.client": [
        ('{"client.id": "a"}', {"client.id": "a"}),
        ('{"client": {"id": "a"}}', {"client.id": "a"}),
    ],
    "kafka.producer": [('{"linger.ms": 2.5}', {"linger.ms": 2.5})],
    "kafka.consumer": [('{"check.crcs": true}', {"check.crcs": True})],
    "spark.sink_shards": [("1", 1), ("16", 16)],
    "spark.client": [('{"client.rack": "eu-1"}', {"client.rack": "eu-1"})],
    "job": [('{"currency": "EUR", "limits": {"max": 3}}', {"currency": "EUR", "limits": {"max": 3}})],
}


def _choices(annotation: object) -> list[object]:
    inner = get_args(annotation)
    return [choice for one in inner for choice in _choices(one)] if inner else [annotation]


@pytest.mark.parametrize("name", DESCRIBED)
def test_every_setting_is_read_from_its_variable(name: str) -> None:
    """Read without the rules between settings: a single one may contradict a default."""
    variable = DESCRIBED[name].variable
    assert variable == "EOS_" + name.upper().replace(".", "__")
    for text, meant in samples(name):
        sources = Sources(Settings)
        given = sources.environment({variable: text})
        assert sources.problems == []
        value = at(Settings.model_validate(sources.nested(given)), name)
        assert (value.get_secret_value() if hasattr(value, "get_secret_value") else value) == meant


def test_every_setting_is_described_with_its_unit() -> None:
    units = {"_ms": "milliseconds", "_s": "seconds", "_bytes": "bytes", "_mb": "MiB"}
    for name, one in DESCRIBED.items():
        assert one.description, name
        for suffix, unit in units.items():
            if name.endswith(suffix):
                assert unit in one.description, name


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("EOS_TRANSACTION_TIMEOUT_MS", "EOS_TRANSACTION__TIMEOUT_MS"),
        ("EOS_TRANSACTION__TIMOUT_MS", "EOS_TRANSACTION__TIMEOUT_MS"),
        ("EOS_BOOTSTRAP_SERVERS", "EOS_KAFKA__BOOTSTRAP_SERVERS"),
        ("EOS_ORDINALS", "EOS_ORDINAL"),
        ("EOS_SECRET_DIR", "EOS_SECRETS_DIR"),
        ("EOS_KAFKA__CONSUMR__FETCH_MIN_BYTES", ""),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_name(variable: str, meant: str) -> None:
    message = problem({variable: "S3CR3T"})
    assert message.startswith(f"{variable}: there is no such setting")
    assert meant in message
    assert "S3CR3T" not in message


@pytest.mark.parametrize(
    ("text", "written", "meant"),
    [
        ("[kafka]\nbootstrap_server = 'a:1'", "kafka.bootstrap_server", "kafka.bootstrap_servers"),
        ("bootstrap_servers = 'a:1'", "bootstrap_servers", "kafka.bootstrap_servers"),
        ("[transactions]\ntimeout_ms = 1", "transactions", "transaction"),
        ("[kafka.bootstrap_servers]\nx = 1", "kafka.bootstrap_servers", "host:port"),
        ("transaction = 3", "transaction", "settings inside it"),
    ],
)
def test_an_unknown_key_of_the_file_is_refused_with_the_nearest_name(
    tmp_path: Path, text: str, written: str, meant: str
) -> None:
    config = toml(tmp_path, text)
    message = problem(config=config)
    assert message.startswith(f"{written} (toml {config}): ")
    assert meant in message


def test_all_problems_of_all_sources_come_in_one_message(tmp_path: Path) -> None:
    config = toml(tmp_path, "[transaction]\ntimeout_ms = 1\n[nonsense]\nx = 1")
    message = problem(
        {"EOS_NONSENSE": "1", "EOS_WORKERS__COUNT": "many"},
        config=config,
        overrides={"poison.policy": "ignore"},
    )
    assert message.splitlines()[0] == "5 settings are wrong:"
    for name in ("transaction.timeout_ms", "nonsense", "EOS_NONSENSE", "workers.count", "poison.policy"):
        assert name in message
    assert "environment EOS_WORKERS__COUNT" in message
    assert all("Fix: " in line for line in message.splitlines()[1:])


@pytest.mark.parametrize("variable", ["eos_ordinal", "Eos_Workers__Count", "EOS_workers__count"])
def test_variable_that_is_not_in_capitals_is_refused(variable: str) -> None:
    """The worker would run as number 0, whatever number was meant."""
    assert f"{variable}: " in (message := problem({variable: "1"}))
    assert f"write {variable.upper()}" in message


def test_variables_of_kubernetes_services_are_no_settings() -> None:
    """A service named eos-web puts these into every pod of its namespace."""
    load(
        {
            "EOS_WEB_SERVICE_HOST": "10.0.0.1",
            "EOS_WEB_SERVICE_PORT": "80",
            "EOS_WEB_SERVICE_PORT_METRICS": "81",
            "EOS_WEB_PORT": "tcp://10.0.0.1:80",
            "EOS_WEB_PORT_80_TCP": "tcp://10.0.0.1:80",
            "EOS_WEB_PORT_80_TCP_ADDR": "10.0.0.1",
        }
    )
    assert "EOS_OBSERVE__HTTP_PORT" in problem({"EOS_OBSERVE_HTTP_PORT": "8080"})


@pytest.mark.parametrize(
    ("text", "what"),
    [("[kafka", "is not TOML"), (None, "there is no such file"), (b"a = '\xff'", "is not UTF-8")],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, text: str | bytes | None, what: str) -> None:
    file = tmp_path / "x.toml"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert what in problem(config=file)


def test_options_are_dotted_however_they_were_written(tmp_path: Path) -> None:
    """TOML reads a dotted key as tables in tables; a variable has underscores for dots."""
    config = toml(
        tmp_path, '[kafka.consumer]\nfetch.queue.backoff.ms = 2\n"fetch.min.bytes" = 1\ncheck.crcs = true'
    )
    environ = {"EOS_KAFKA__CONSUMER__FETCH_MIN_BYTES": "9", "EOS_KAFKA__CONSUMER": '{"client.rack": "a"}'}
    assert load(environ, config=config).kafka.consumer == {
        "fetch.queue.backoff.ms": 2,
        "fetch.min.bytes": "9",
        "check.crcs": True,
        "client.rack": "a",
    }


def test_a_table_as_json_that_is_no_json_is_refused_without_its_text() -> None:
    message = problem({"EOS_KAFKA__CLIENT": '{"ssl.keystore.password": S3CR3T'})
    assert "kafka.client (environment EOS_KAFKA__CLIENT): is not JSON" in message
    assert "S3CR3T" not in message


def test_an_option_is_one_value(tmp_path: Path) -> None:
    config = toml(tmp_path, "[kafka.client]\nclient.id = ['a', 'b']")
    assert "kafka.client.client.id" in problem(config=config)


def test_the_ordinal_may_be_said_only_once() -> None:
    assert load({"EOS_ORDINAL": "3"}).ownership.ordinal == 3
    assert "EOS_OWNERSHIP__ORDINAL: EOS_ORDINAL is set too" in problem(
        {"EOS_ORDINAL": "3", "EOS_OWNERSHIP__ORDINAL": "3"}
    )


def test_mounted_files_without_a_settings_name_are_left_alone_but_near_misses_are_not(tmp_path: Path) -> None:
    for name, text in {"tls.crt": "pem", "group": "refunds\n", "..data": "x"}.items():
        (tmp_path / name).write_text(text)
    assert load({"EOS_SECRETS_DIR": str(tmp_path)}).group == "refunds"
    (tmp_path / "kafka__sasl_pasword").write_text("S3CR3T")
    message = problem({"EOS_SECRETS_DIR": str(tmp_path)})
    assert "did you mean kafka.sasl_password" in message
    assert "S3CR3T" not in message


def test_a_missing_directory_of_secrets_is_refused(tmp_path: Path) -> None:
    assert "EOS_SECRETS_DIR" in problem({"EOS_SECRETS_DIR": str(tmp_path / "gone")})


def test_settings_are_immutable_and_cross_process_borders() -> None:
    environ = {"EOS_KAFKA__BOOTSTRAP_SERVERS": "a:1", "EOS_KAFKA__CLIENT": json.dumps({"client.id": "x"})}
    settings = load(environ)
    again = pickle.loads(pickle.dumps(settings))  # noqa: S301 - our own bytes
    assert again == settings
    assert again.shown() == settings.shown()
    with pytest.raises(ValueError, match="frozen"):
        settings.workers.count = 3  # type: ignore[misc] # what is tested


def test_a_list_of_brokers_is_joined(tmp_path: Path) -> None:
    config = toml(tmp_path, "[kafka]\nbootstrap_servers = ['a:1', 'b:2']")
    assert load(config=config).kafka.bootstrap_servers == "a:1,b:2"


def test_the_group_is_the_jobs_name_unless_set() -> None:
    assert load().group_for("refunds") == "refunds"
    assert load({"EOS_GROUP": "g"}).group_for("refunds") == "g"


def test_path_of_the_file_may_be_a_text(tmp_path: Path) -> None:
    """As the documents write it."""
    (tmp_path / "one.toml").write_text('group = "g"\n')
    assert Settings.load(str(tmp_path / "one.toml"), environ={}).group == "g"


def test_what_is_said_once_is_not_said_to_a_process_that_joins_a_job_which_runs() -> None:
    """A supervisor starts workers again: a start policy, or what was adopted, was for the job's first start."""
    given = settings_of("nowhere:1", input__start="earliest", ownership__adopt_offsets=True)
    later = given.once_started()
    assert (later.input.start, later.ownership.adopt_offsets) == ("fail", False)
    assert later.model_dump(exclude={"input", "ownership"}) == given.model_dump(
        exclude={"input", "ownership"}
    )

"""No secret leaves the settings but in the dict that a client is built from."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest

from eos.errors import ConfigError
from eos.kafka.config import client_config, consumer_config, producer_config
from eos.settings import HIDDEN, Settings, is_sensitive
from tests.support.settings import settings_of

CANARY = "S3CR3T-5f0c"
SCRAM = {
    "EOS_KAFKA__BOOTSTRAP_SERVERS": "a:1",
    "EOS_KAFKA__SECURITY_PROTOCOL": "SASL_SSL",
    "EOS_KAFKA__SASL_MECHANISM": "SCRAM-SHA-512",
    "EOS_KAFKA__SASL_USERNAME": "refunds",
}


def everything_printable(settings: Settings) -> str:
    tables = [getattr(settings, name) for name in Settings.model_fields]
    return "\n".join(map(str, [settings, repr(settings), settings.shown(), f"{settings}", *tables[1:-1]]))


def test_a_password_from_any_source_reaches_the_client_and_no_text(tmp_path: Path) -> None:
    file = tmp_path / "kafka__sasl_password"
    file.write_text(f"{CANARY}\n")
    config = tmp_path / "x.toml"
    config.write_text(f"[kafka]\nsasl_password = '{CANARY}'")
    sources: list[dict[str, Any]] = [
        {"environ": {**SCRAM, "EOS_KAFKA__SASL_PASSWORD": CANARY}},
        {"environ": {**SCRAM, "EOS_KAFKA__SASL_PASSWORD_FILE": str(file)}},
        {"environ": {**SCRAM, "EOS_SECRETS_DIR": str(tmp_path)}},
        {"environ": SCRAM, "config": config},
        {"environ": SCRAM, "overrides": {"kafka.sasl_password": CANARY}},
    ]
    for source in sources:
        settings = Settings.load(**source)
        for rendered in (
            client_config(settings),
            producer_config(settings, "t"),
            consumer_config(settings, "g", 0),
        ):
            assert rendered["sasl.password"] == CANARY
        assert CANARY not in everything_printable(settings)
        assert settings.shown()["kafka"]["sasl_password"].value == HIDDEN


def test_passed_through_secrets_are_hidden_and_others_are_not() -> None:
    options = {
        "ssl.keystore.password": CANARY,
        "ssl.key.pem": CANARY,
        "sasl.oauthbearer.client.secret": CANARY,
        "sasl.oauthbearer.config": CANARY,
        "sasl.oauthbearer.token.endpoint.url": CANARY,
        "some.jaas": CANARY,
        "client.id": f"http://user:{CANARY}@host",
        "client.rack": "rack-a",
    }
    own = {"token": CANARY, "db": {"password": CANARY}, "fee": 3}
    settings = settings_of(kafka__client=options, job=own)
    assert CANARY not in everything_printable(settings)
    shown = settings.shown()
    assert shown["kafka"]["client"]["client.rack"] == ("rack-a", "override")
    assert shown["kafka"]["client"]["ssl.keystore.password"].value == HIDDEN
    assert shown["job"]["fee"].value == 3
    assert shown["job"]["db"]["password"] == (HIDDEN, "override")


def test_a_secret_under_a_short_name_or_inside_an_address_is_hidden_and_what_only_sounds_so_is_not() -> None:
    own = {
        **dict.fromkeys(
            ("pwd", "db_pwd", "auth", "dsn", "connection_string", "conn_str", "cookie", "bearer"), CANARY
        ),
        "url": f"https://host/path?page=2&token={CANARY}",
        "odbc": f"Server=db;Pwd={CANARY};Encrypt=yes",
        "author": "me",
        "authority": "ca",
        "bypass": "no",
    }
    settings = settings_of(job=own)
    assert CANARY not in everything_printable(settings)
    shown = settings.shown()["job"]
    assert [shown[name].value for name in ("author", "authority", "bypass")] == ["me", "ca", "no"]
    assert shown["url"].value == f"https://host/path?page=2&token={HIDDEN}"


@pytest.mark.parametrize(
    "environ",
    [
        {"EOS_KAFKA__SASL_PASSWORD": CANARY},
        {"EOS_KAFKA__SASL_PASSWORD": CANARY, "EOS_TRANSACTION__TIMEOUT_MS": "1"},
        {"EOS_KAFKA__SASL_PASSWORDS": CANARY},
        {"EOS_KAFKA__CLIENT": f'{{"sasl.password": "{CANARY}"}}'},
        {"EOS_KAFKA__CLIENT": CANARY},
        {"EOS_KAFKA": f'{{"sasl_password": ["{CANARY}"]}}'},
        {"EOS_KAFKA": f'{{"sasl_password": {{"{CANARY}x": "{CANARY}"}}, "sasl_username": 3}}'},
        {"EOS_KAFKA__CONSUMER": f'{{"sasl.password": "{CANARY}", "x": []}}'},
        {"EOS_KAFKA__SASL_PASSWORD": CANARY, "EOS_KAFKA__SASL_PASSWORD_FILE": "/nowhere"},
        {"EOS_SQL__URL": CANARY, "EOS_SQL__URL_FILE": "/nowhere"},
        {"EOS_SQL__URLS": f"postgresql://eos:{CANARY}@host/db"},
        {"EOS_SQL": f'{{"url": {{"{CANARY}x": "{CANARY}"}}}}'},
    ],
)
def test_no_error_shows_a_secret(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        client_config(Settings.load(environ=environ))
    text = "".join(traceback.format_exception(caught.value))
    assert CANARY not in text.replace(f"{CANARY}x", "")


def test_one_trailing_newline_of_a_secret_file_is_not_part_of_it(tmp_path: Path) -> None:
    file = tmp_path / "password"
    environ = {**SCRAM, "EOS_KAFKA__SASL_PASSWORD_FILE": str(file)}
    for written, meant in (("a b\n", "a b"), ("a \r\n", "a "), (" a\n\n", " a\n"), ("a", "a")):
        file.write_bytes(written.encode())
        assert client_config(Settings.load(environ=environ))["sasl.password"] == meant


def test_a_secret_file_that_holds_no_secret_is_refused_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "password"
    cases: list[tuple[bytes | None, str]] = [
        (None, "does not exist"),
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"\xff\xfe" + CANARY.encode(), "is not UTF-8"),
        (b"x" * 70_000, "70000 bytes"),
    ]
    for content, what in cases:
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(ConfigError, match=what) as caught:
            Settings.load(environ={**SCRAM, "EOS_KAFKA__SASL_PASSWORD_FILE": str(file)})
        assert "kafka.sasl_password_file (environment EOS_KAFKA__SASL_PASSWORD_FILE)" in str(caught.value)
        assert str(file) in str(caught.value)
    with pytest.raises(ConfigError, match="is not a file"):
        Settings.load(environ={**SCRAM, "EOS_KAFKA__SASL_PASSWORD_FILE": str(tmp_path)})


def test_a_secret_and_its_file_are_not_given_together(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("other")
    config = tmp_path / "x.toml"
    config.write_text(f"[kafka]\nsasl_password_file = '{tmp_path}/password'")
    with pytest.raises(ConfigError, match=r"kafka\.sasl_password is given too"):
        Settings.load(config, environ={**SCRAM, "EOS_KAFKA__SASL_PASSWORD": CANARY})


def test_names_of_secrets_are_distinguished_from_names_of_files() -> None:
    assert all(map(is_sensitive, ["kafka.sasl_password", "db.api_key", "ssl.key.pem", "OAUTH_TOKEN"]))
    assert not any(map(is_sensitive, ["kafka.sasl_password_file", "ssl.key.location", "group", "monkey"]))

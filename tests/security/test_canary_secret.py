"""A secret that is put through every way of configuration is found nowhere that people or other programs look.

Looked at: what commands print (at log level debug, with tracebacks), `eos config show`, the metrics page, the command
lines of all processes, and librdkafka's own debug log.
"""

from __future__ import annotations

import os
import re
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from eos.exits import ExitCode
from eos.kafka.config import client_config
from eos.settings import HIDDEN
from tests.support import observer
from tests.support.command_line import Eos
from tests.support.patience import PATIENCE_S
from tests.support.secured_broker import SecuredBroker, User
from tests.support.secured_job import REFERENCE, Environment, SecuredJob, ended, eos_process, variable
from tests.support.settings import settings_of

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("secured")]


Way = Callable[
    [Path, str, str], Environment
]  # a directory, a setting's name, and a secret to the variables that say it


def by_variable(_: Path, name: str, secret: str) -> Environment:
    return {variable(name): secret}


def by_file(directory: Path, name: str, secret: str) -> Environment:
    file = directory / "secret"
    file.write_text(f"{secret}\n")
    return {variable(f"{name}_file"): str(file)}


def by_secrets_directory(directory: Path, name: str, secret: str) -> Environment:
    mounted = directory / "mounted"
    mounted.mkdir()
    (mounted / name.replace(".", "__")).write_text(secret)
    return {"EOS_SECRETS_DIR": str(mounted)}


def by_toml(directory: Path, name: str, secret: str) -> Environment:
    table, _, key = name.partition(".")
    (directory / "job.toml").write_text(f'[{table}]\n{key} = "{secret}"\n')
    return {"CONFIG": str(directory / "job.toml")}


def by_json_variable(directory: Path, name: str, secret: str) -> Environment:
    table, _, key = name.partition(".")
    return {variable(table): f'{{"{key}": "{secret}"}}'}


_WAYS = [
    by_file,
    *(
        pytest.param(way, marks=pytest.mark.slow)
        for way in (by_variable, by_secrets_directory, by_toml, by_json_variable)
    ),
]
# Secrets that are not the login's: of an encrypted key, librdkafka's by their own names, Java's, and a job's own.
_OTHERS = [
    "EOS_KAFKA__SSL_KEY_PASSWORD",
    "EOS_KAFKA__CLIENT__SSL_KEYSTORE_PASSWORD",
    "EOS_KAFKA__CLIENT__SSL_KEY_PEM",
    "EOS_KAFKA__CLIENT__SASL_OAUTHBEARER_CLIENT_SECRET",
    "EOS_KAFKA__PRODUCER__SSL_KEYSTORE_PASSWORD",
    "EOS_KAFKA__CONSUMER__SASL_OAUTHBEARER_CONFIG",
    "EOS_SPARK__CLIENT__SASL_JAAS_CONFIG",
    "EOS_JOB__API_KEY",
]


@pytest.fixture
def canary() -> str:
    return f"S3CR3T-{uuid.uuid4().hex}"


def _page(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as page:
        return str(page.read().decode())


def _command_lines(pid: int) -> str:
    process = psutil.Process(pid)
    return "\n".join(" ".join(one.cmdline()) for one in [process, *process.children(recursive=True)])


@pytest.mark.parametrize("way", _WAYS, ids=["file", "variable", "directory", "toml", "json"])
def test_a_login_s_secret_works_and_is_shown_nowhere(
    secured: SecuredBroker, tmp_path: Path, canary: str, way: Way
) -> None:
    work = SecuredJob(secured, canary)
    env = work.environment(EOS_OBSERVE__HTTP_PORT="0") | way(tmp_path, "kafka.sasl_password", canary)

    code, shown = ended("config", "show", env=env)
    assert (code, canary in shown) == (ExitCode.DONE, False)
    assert "kafka.sasl_password" in shown

    with eos_process("run", REFERENCE, env=env) as job:
        deadline = time.monotonic() + PATIENCE_S
        while not observer.read_committed(secured.plain, f"{work.topic}.copies", settled=False):
            assert time.monotonic() < deadline, "nothing was processed"
            assert job.alive
        lines = _command_lines(job.pid)
        assert "eos.cli" in lines
        assert canary not in lines
        served = re.search(r"http://([\d.:]+)", job.wait_line("metrics and health", PATIENCE_S))
        assert served is not None
        while "eos_records_in" not in (metrics := _page(served[1])):
            assert time.monotonic() < deadline, metrics
            time.sleep(0.1)
        assert canary not in metrics
        job.terminate()
        assert job.wait(PATIENCE_S) == ExitCode.DONE
        assert canary not in "\n".join(job.lines)


@pytest.mark.parametrize(
    "way", [by_variable, pytest.param(by_toml, marks=pytest.mark.slow)], ids=["variable", "toml"]
)
def test_a_wrong_secret_is_in_no_error_and_no_traceback(
    secured: SecuredBroker, tmp_path: Path, canary: str, way: Way
) -> None:
    work = SecuredJob(secured, "another")
    env = work.environment() | way(tmp_path, "kafka.sasl_password", canary)
    code, said = ended("run", REFERENCE, env=env)
    assert code == ExitCode.CONFIGURATION
    assert "Traceback" in said
    assert "kafka.sasl_password" in said
    assert canary not in said


def test_a_secret_on_the_command_line_is_refused_and_not_repeated(eos: Eos, canary: str) -> None:
    for name in ("kafka.sasl_password", "kafka.client.ssl.keystore.password", "job.api_key"):
        ended = eos("--debug", "config", "show", "--set", f"{name}={canary}")
        assert ended.code == ExitCode.CONFIGURATION
        assert "(ps)" in ended.err
        assert canary not in ended.out + ended.err


def test_secrets_of_other_kinds_are_hidden_in_what_is_shown(
    eos: Eos, canary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a file of a certificate begins with: -----BEGIN CERTIFICATE-----
    files = {"EOS_KAFKA__SSL_CERTIFICATE_FILE": __file__, "EOS_KAFKA__SSL_KEY_FILE": __file__}
    for name, value in {
        **dict.fromkeys(_OTHERS, canary),
        **files,
        "EOS_KAFKA__SECURITY_PROTOCOL": "SSL",
    }.items():
        monkeypatch.setenv(name, value)
    ended = eos("config", "show")
    assert ended.code == ExitCode.DONE, ended.err
    assert canary not in ended.out + ended.err
    assert ended.out.count(HIDDEN) == len(_OTHERS)


@pytest.mark.parametrize(
    "broken",
    [
        {"EOS_KAFKA": '{"sasl_password": "CANARY"'},
        {"EOS_KAFKA__CLIENT": "CANARY"},
        {"EOS_KAFKA__CLIENT__SASL_PASSWORD": "CANARY"},
        {"EOS_KAFKA__SASL_PASWORD": "CANARY"},
        {"EOS_KAFKA__SASL_PASSWORD": "CANARY", "EOS_KAFKA__SASL_PASSWORD_FILE": "/dev/null"},
        {"EOS_KAFKA__SASL_PASSWORD": "CANARY", "EOS_KAFKA__SECURITY_PROTOCOL": "nonsense"},
        {"EOS_JOB__API_KEY": "CANARY", "EOS_TRANSACTION__TIMEOUT_MS": "soon"},
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_settings_that_are_wrong_are_named_without_their_secrets(
    eos: Eos, canary: str, monkeypatch: pytest.MonkeyPatch, broken: Environment
) -> None:
    for name, value in broken.items():
        monkeypatch.setenv(name, value.replace("CANARY", canary))
    ended = eos("--debug", "config", "show")
    assert ended.code == ExitCode.CONFIGURATION
    assert "Traceback" in ended.err
    assert canary not in ended.out + ended.err


def test_librdkafka_s_own_debug_log_has_no_secret(secured: SecuredBroker, canary: str) -> None:
    user = secured.add_user(observer.unique("debugged"), canary)
    settings = settings_of(**secured.sasl(user))
    lines: list[str] = []

    class Keep:
        def log(self, level: int, template: str, *args: object) -> None:
            lines.append(template % args)

    options = client_config(settings) | {"debug": "all", "log_level": 7, "logger": Keep()}
    client = AdminClient(options)
    client.list_topics(timeout=PATIENCE_S)
    client.poll(0.5)
    assert any("SCRAM" in line for line in lines)
    assert canary not in "\n".join(lines)


def test_settings_and_their_clients_say_no_secret_of_themselves(secured: SecuredBroker, canary: str) -> None:
    settings = settings_of(**secured.sasl(User("somebody", canary)))
    assert canary in str(client_config(settings))
    assert canary not in f"{settings!r} {settings} {settings.kafka!r} {settings.model_dump()}"
    assert canary not in str(os.environ)

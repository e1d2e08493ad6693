"""Tokens of OAUTHBEARER: asked for as librdkafka asks, and no secret in what is said when there is none."""

from __future__ import annotations

import base64
import json
import socket
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from eos.base.deadline import Deadline
from eos.errors import ConfigError, EosError, UnavailableError
from eos.kafka.consumer import ConsumerClient
from eos.kafka.tokens import Tokens, librdkafka_alone, why_no_token
from eos.ops.check.kafka_python import client_options
from tests.support.certificates import OPENSSL, Authority
from tests.support.patience import PATIENCE_S
from tests.support.settings import settings_of
from tests.support.token_endpoint import HOST, Answer, TokenEndpoint, token_endpoint, unsigned

CLIENT, SECRET = "refunds", "s3cr3t/+ %?"
_SHORT_S = 0.4


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    with token_endpoint() as one:
        one.clients[CLIENT] = SECRET
        yield one


def config_of(url: str, **more: Any) -> dict[str, Any]:
    """librdkafka's options; of `more`, names with ``_`` for the dot."""
    return {
        "bootstrap.servers": f"{HOST}:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.client.id": CLIENT,
        "sasl.oauthbearer.client.secret": SECRET,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def refused(config: dict[str, Any], timeout_s: float = PATIENCE_S) -> EosError:
    """The error, in whose traceback there is no secret."""
    with pytest.raises(EosError) as caught:
        Tokens(config).token(timeout_s)
    said = "".join(traceback.format_exception(caught.value))
    basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
    assert not [secret for secret in (SECRET, basic) if secret in said]
    return caught.value


def claims(token: str) -> dict[str, Any]:
    payload = token.split(".")[1]
    decoded: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return decoded


def test_the_endpoint_is_asked_as_librdkafka_asks_it(endpoint: TokenEndpoint) -> None:
    config = config_of(
        f"{endpoint.url}?tenant=a",
        sasl_oauthbearer_scope="api://kafka/.default a%20b c",
        sasl_oauthbearer_extensions="logicalCluster=lkc-1, poolId=p",
    )
    client = AdminClient({**config, "log_level": 0})
    assert Deadline(PATIENCE_S).wait_for(lambda: bool(endpoint.given))
    del client
    tokens = Tokens(config)

    assert tokens.token(PATIENCE_S) == endpoint.given[-1]
    assert tokens.extensions() == {"logicalCluster": "lkc-1", "poolId": "p"}
    theirs, ours = endpoint.asked
    assert (theirs.path, theirs.form) == (ours.path, ours.form)
    for name in ("Authorization", "Content-Type", "Accept"):
        assert theirs.headers[name] == ours.headers[name]


def test_the_other_names_of_id_and_secret_are_known(endpoint: TokenEndpoint) -> None:
    config = config_of(endpoint.url)
    for name in ("id", "secret"):
        config[f"sasl.oauthbearer.client.credentials.client.{name}"] = config.pop(
            f"sasl.oauthbearer.client.{name}"
        )
    assert claims(Tokens(config).token(PATIENCE_S))["sub"] == CLIENT


def test_a_token_is_used_for_most_of_its_life_and_then_renewed(endpoint: TokenEndpoint) -> None:
    tokens = Tokens(config_of(endpoint.url))
    assert tokens.token(PATIENCE_S) == tokens.token(PATIENCE_S)
    assert len(endpoint.asked) == 1
    endpoint.life_s = 0.5
    renewed = Tokens(config_of(endpoint.url))
    first = renewed.token(PATIENCE_S)
    time.sleep(0.5)
    assert renewed.token(PATIENCE_S) == endpoint.given[-1] != first


@pytest.mark.parametrize("status", [400, 401, 403])
def test_a_refused_client_is_told_what_the_endpoint_says_and_which_settings_say_who_it_is(
    endpoint: TokenEndpoint, status: int
) -> None:
    basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
    endpoint.answer = Answer(status, f'{{"error":\n"invalid_client", "echo": "{SECRET} Basic {basic}"}}')
    error = refused(config_of(endpoint.url))
    assert isinstance(error, ConfigError)
    assert str(error).startswith(
        "kafka.client.sasl.oauthbearer.client.secret: the token endpoint http://127.0.0.1:"
    )
    assert f'answers {status} {{"error": "invalid_client"' in str(error)
    assert "sasl.oauthbearer.client.id" in str(error)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_an_endpoint_that_may_answer_later_is_unavailable(endpoint: TokenEndpoint, status: int) -> None:
    endpoint.answer = Answer(status, "overloaded")
    error = refused(config_of(endpoint.url))
    assert isinstance(error, UnavailableError)
    assert f"it answers {status} overloaded. Fix: " in str(error)
    assert "kafka.client.sasl.oauthbearer.token.endpoint.url" in str(error)


def test_the_secret_does_not_follow_to_another_address(endpoint: TokenEndpoint) -> None:
    with token_endpoint() as other:
        endpoint.answer = Answer(302, "", (("Location", other.url),))
        error = refused(config_of(endpoint.url))
        assert other.asked == []
    assert isinstance(error, ConfigError)
    assert str(error).startswith("kafka.client.sasl.oauthbearer.token.endpoint.url: ")


@pytest.mark.parametrize("byte_every_s", [60.0, _SHORT_S / 4], ids=["silent", "byte by byte"])
def test_an_endpoint_that_does_not_answer_is_waited_for_until_the_deadline(
    endpoint: TokenEndpoint, byte_every_s: float
) -> None:
    endpoint.byte_every_s = byte_every_s
    began = time.monotonic()
    error = refused(config_of(endpoint.url), timeout_s=_SHORT_S)
    assert time.monotonic() - began < 30
    assert isinstance(error, UnavailableError)
    assert "no answer in 0.4 s" in str(error)


def test_an_endpoint_that_is_away_is_unavailable() -> None:
    error = refused(config_of(f"http://{HOST}:1/token"))
    assert isinstance(error, UnavailableError)
    assert "refused" in str(error)


@pytest.mark.parametrize(
    "token",
    [
        None,
        7,
        "opaque-CANARY",
        "a.CANARY.c",
        unsigned({"exp": 9e9, "CANARY": "x"}),
        unsigned({"exp": 9e9, "sub": ""}),
        unsigned({"sub": "CANARY"}),
        unsigned({"sub": "CANARY", "exp": 1.0}),
        unsigned({"sub": "x", "exp": 9e9}) + "\x01CANARY",
        unsigned({"sub": "x", "exp": 9e9}) + "CANARY…",
    ],
)
def test_a_token_that_librdkafka_would_not_take_is_refused_and_not_quoted(
    endpoint: TokenEndpoint, token: object
) -> None:
    endpoint.answer = Answer(200, json.dumps({"access_token": token} if token else {}))
    error = refused(config_of(endpoint.url))
    assert isinstance(error, ConfigError)
    assert str(error).startswith("kafka.client.sasl.oauthbearer.token.endpoint.url: the answer of ")
    said = "".join(traceback.format_exception(error))
    assert "CANARY" not in said
    assert str(token) not in str(error) or token in {None, 7}


def test_the_claim_that_names_the_principal_may_be_another(endpoint: TokenEndpoint) -> None:
    endpoint.answer = Answer(
        200, json.dumps({"access_token": unsigned({"azp": "me", "exp": time.time() + 60})})
    )
    assert Tokens(config_of(endpoint.url, sasl_oauthbearer_sub_claim_name="azp")).token(PATIENCE_S)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("sasl.oauthbearer.token.endpoint.url", ""),
        ("sasl.oauthbearer.token.endpoint.url", "file:///etc/passwd"),
        ("sasl.oauthbearer.token.endpoint.url", "//host"),
        ("sasl.oauthbearer.client.id", ""),
        ("sasl.oauthbearer.client.secret", ""),
        ("sasl.oauthbearer.extensions", "auth=x"),
        ("sasl.oauthbearer.extensions", "a1=x"),
        ("sasl.oauthbearer.extensions", "a=\x01auth=x"),
        ("https.ca.location", "/there/is/none.pem"),
    ],
)
def test_an_option_that_is_wrong_is_named(option: str, value: str) -> None:
    error = refused(config_of(f"https://{HOST}:1/") | {option: value})
    assert isinstance(error, ConfigError)
    assert str(error).startswith(f"kafka.client.{option}: ")


@pytest.mark.skipif(OPENSSL is None, reason="certificates are made by openssl, which is not on the PATH")
def test_the_endpoint_is_trusted_by_the_authority_that_is_set(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with token_endpoint(authority.issue("idp", f"IP:{HOST}").both) as endpoint:
        endpoint.clients[CLIENT] = SECRET
        error = refused(config_of(endpoint.url))
        assert isinstance(error, ConfigError)
        assert str(error).startswith("kafka.client.https.ca.location: the certificate of https://127.0.0.1:")
        assert endpoint.asked == []
        location = {"https.ca.location": str(authority.certificate)}
        pem = {"https.ca.pem": authority.certificate.read_text()}
        for trusted in (location, pem):
            assert Tokens(config_of(endpoint.url) | trusted).token(PATIENCE_S)
        misnamed = f"https://localhost:{endpoint.url.rpartition(':')[2]}"
        assert "kafka.client.https.ca.location" in str(refused(config_of(misnamed) | location))


def test_a_login_within_the_address_is_neither_sent_nor_shown() -> None:
    url = f"http://user:CANARY@{HOST}:1/token?key=CANARY#CANARY"
    assert "CANARY" not in str(refused(config_of(url)))


def test_an_unsecured_token_has_the_claims_of_librdkafka_s() -> None:
    config = {
        "sasl.mechanism": "OAUTHBEARER",
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
        "sasl.oauthbearer.config": "principalClaimName=azp principal=admin scopeClaimName=roles scope=a,b,,a "
        "lifeSeconds=600 extension_traceId=123",
    }
    tokens = Tokens(config)
    header, _, signature = tokens.token().split(".")
    assert (header, signature) == ("eyJhbGciOiJub25lIn0", "")
    found = claims(tokens.token())
    assert found.pop("exp") - found.pop("iat") == pytest.approx(600)
    assert found == {"azp": "admin", "roles": ["a", "b"]}
    assert tokens.extensions() == {"traceId": "123"}
    plain = Tokens(config | {"sasl.oauthbearer.config": "principal=me"})
    found = claims(plain.token())
    assert found.pop("exp") - found.pop("iat") == pytest.approx(3600)
    assert found == {"sub": "me"}


@pytest.mark.parametrize(
    "config",
    [
        "",
        "principal=",
        "principal=a CANARY=x",
        "principal=a lifeSeconds=-CANARY",
        "principal=a extension_=CANARY",
    ],
)
def test_a_wrong_config_of_unsecured_tokens_is_named_and_not_quoted(config: str) -> None:
    options = {"enable.sasl.oauthbearer.unsecure.jwt": True, "sasl.oauthbearer.config": config}
    with pytest.raises(ConfigError, match=r"^kafka\.client\.sasl\.oauthbearer\.config: ") as caught:
        Tokens(options)
    assert "CANARY" not in str(caught.value)


_ALONE = [
    ("sasl.oauthbearer.grant.type", "urn:ietf:params:oauth:grant-type:jwt-bearer"),
    ("sasl.oauthbearer.metadata.authentication.type", "azure_imds"),
]


@pytest.mark.parametrize(("option", "value"), _ALONE)
def test_a_login_that_librdkafka_alone_can_carry_out_is_refused_with_the_commands_and_the_way_out(
    option: str, value: str
) -> None:
    config = config_of("http://127.0.0.1:1/") | {option: value}
    assert librdkafka_alone(config) == f"kafka.client.{option} = {value}"
    assert why_no_token(config, PATIENCE_S) is None
    given = {f"kafka.client.{name}": one for name, one in config.items() if name.startswith("sasl.oauth")}
    mechanism = {"kafka.security_protocol": "SASL_PLAINTEXT", "kafka.sasl_mechanism": "OAUTHBEARER"}
    with pytest.raises(ConfigError) as caught:
        client_options(settings_of("a:1", **mechanism, **given))
    assert str(caught.value).startswith(f"kafka.client.{option} = {value}: ")
    for part in ("eos transactions list, explain, end and abort", "eos offsets set and copy", "eos skip"):
        assert part in str(caught.value)
    assert "kafka-transactions.sh" in str(caught.value)


def test_tokens_from_a_callback_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^kafka\.client\.sasl\.oauthbearer\.method: .* Fix: oidc$"):
        Tokens({"sasl.mechanism": "OAUTHBEARER"})


def test_nothing_that_is_printed_of_a_login_holds_a_secret(endpoint: TokenEndpoint) -> None:
    tokens = Tokens(config_of(endpoint.url))
    value = tokens.token(PATIENCE_S)
    said = f"{tokens!r} {tokens} {tokens._last!r}"
    assert value not in said
    assert SECRET not in said


def test_the_log_lines_of_librdkafka_do_not_hold_what_the_endpoint_repeats(
    endpoint: TokenEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
    endpoint.answer = Answer(401, json.dumps({"echo": SECRET, "header": f"Basic {basic}"}))
    url = endpoint.url.replace("http://", "http://user:CANARY@")
    consumer = ConsumerClient({**config_of(url), "group.id": "g"})
    try:
        assert Deadline(PATIENCE_S).wait_for(lambda: bool(consumer.consume(1, 0.1)) and "echo" in caplog.text)
    finally:
        consumer.close()
    assert endpoint.url.removeprefix("http://") in caplog.text
    assert not [secret for secret in (SECRET, basic, "CANARY") if secret in caplog.text]


@pytest.mark.parametrize("status", [401, 503])
def test_a_consumer_without_a_token_ends_with_what_the_endpoint_says(
    endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr("eos.kafka.consumer._REFUSED_S", 0.2)
    endpoint.answer = Answer(401, "no")  # what librdkafka gets: at a 503 it waits for 5 s before it says so
    consumer = ConsumerClient({**config_of(endpoint.url), "group.id": "g"})
    try:
        assert Deadline(PATIENCE_S).wait_for(lambda: bool(endpoint.asked))
        endpoint.answer = Answer(status, "no")
        with pytest.raises(ConfigError if status == 401 else UnavailableError, match=f"answers {status} no"):
            assert Deadline(PATIENCE_S).wait_for(lambda: not consumer.consume(1, 0.1))
    finally:
        consumer.close()


def test_a_listener_that_never_accepts_is_given_up_too() -> None:
    with socket.create_server((HOST, 0), backlog=0) as server:
        port = server.getsockname()[1]
        with socket.create_connection((HOST, port)):
            error = refused(config_of(f"http://{HOST}:{port}/"), timeout_s=_SHORT_S)
    assert isinstance(error, UnavailableError)

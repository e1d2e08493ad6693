"""What a Java client is told, so that Spark's connector reaches the same cluster as safely as librdkafka does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from eos.errors import ConfigError
from eos.settings import HIDDEN
from eos.spark.session.java_options import _EQUAL, java_client_options
from tests.support.settings import settings_of

BROKER = {"kafka.bootstrap_servers": "a:1,b:2"}
HARD = 'a"b\\c;d=e\n\té€ //*'
PKCS8 = "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIC\n-----END CERTIFICATE-----\n"
SASL: dict[str, Any] = {
    "kafka.security_protocol": "SASL_PLAINTEXT",
    "kafka.sasl_username": 'us"er',
    "kafka.sasl_password": HARD,
}


def rendered(overrides: dict[str, Any] | None = None) -> dict[str, str]:
    return java_client_options(settings_of(**BROKER | (overrides or {})))


def test_plain_cluster_needs_its_address_alone() -> None:
    assert rendered() == {"bootstrap.servers": "a:1,b:2", "security.protocol": "PLAINTEXT"}


def test_without_brokers_the_error_names_the_variable() -> None:
    with pytest.raises(ConfigError, match="EOS_KAFKA__BOOTSTRAP_SERVERS"):
        java_client_options(settings_of())


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "plain.PlainLoginModule"),
        ("SCRAM-SHA-256", "scram.ScramLoginModule"),
        ("SCRAM-SHA-512", "scram.ScramLoginModule"),
    ],
)
def test_user_and_password_become_a_login_that_reads_back(mechanism: str, module: str) -> None:
    options = rendered({**SASL, "kafka.sasl_mechanism": mechanism})

    assert options["sasl.mechanism"] == mechanism
    found = re.fullmatch(
        r'org\.apache\.kafka\.common\.security\.(\S+) required username="(.*)" password="(.*)";',
        options["sasl.jaas.config"],
    )
    assert found is not None
    assert "\n" not in options["sasl.jaas.config"]
    # Backslash escapes are C's there, and Python's are those too.
    read_back = [re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), found[i]) for i in (2, 3)]
    assert (found[1], *read_back) == (module, 'us"er', HARD)


def test_authority_is_named_and_certificate_and_key_are_given_whole(tmp_path: Path) -> None:
    authority, certificate, key = (tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem"))
    authority.write_text(CERTIFICATE)
    certificate.write_text(CERTIFICATE)
    key.write_text(PKCS8)
    tls = {
        "kafka.security_protocol": "SSL",
        "kafka.ssl_ca_file": str(authority),
        "kafka.ssl_certificate_file": str(certificate),
        "kafka.ssl_key_file": str(key),
        "kafka.ssl_key_password": "pw",
    }
    assert rendered(tls) == {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": PKCS8,
        "ssl.keystore.certificate.chain": CERTIFICATE,
        "ssl.key.password": "pw",
    }
    own = rendered(
        tls | {"spark.client": {"ssl.keystore.location": "/k.p12", "ssl.truststore.location": "/t.jks"}}
    )
    assert (own["ssl.keystore.location"], own["ssl.truststore.location"]) == ("/k.p12", "/t.jks")
    assert not {"ssl.keystore.type", "ssl.keystore.key", "ssl.truststore.type"} & own.keys()


@pytest.mark.parametrize(
    ("head", "body", "said"),
    [
        ("RSA PRIVATE KEY", "MIIB", "PKCS#8"),
        ("EC PRIVATE KEY", "MIIB", "PKCS#8"),
        ("CERTIFICATE", "MIIB", "PKCS#8"),
        ("ENCRYPTED PRIVATE KEY", "BgkqhkiG9w0BBQ0=", "PBES2"),
    ],
)
def test_key_that_javas_client_cannot_read_is_refused_with_the_command_that_converts_it(
    tmp_path: Path, head: str, body: str, said: str
) -> None:
    key = tmp_path / "key.pem"
    key.write_text(f"-----BEGIN {head}-----\n{body}\n-----END {head}-----\n")
    tls = {
        "kafka.security_protocol": "SSL",
        "kafka.ssl_certificate_file": str(key),
        "kafka.ssl_key_file": str(key),
    }
    with pytest.raises(
        ConfigError, match=rf"kafka\.ssl_key_file: .*{re.escape(said)}.*openssl pkcs8"
    ) as raised:
        rendered(tls)
    assert body not in str(raised.value)


def test_options_equal_in_both_clients_are_carried_over_and_tuning_is_not() -> None:
    client = {"client.rack": "eu-1", "reconnect.backoff.ms": 70, "socket.nagle.disable": True}
    options = rendered({"kafka.client": client})
    assert (options["client.rack"], options["reconnect.backoff.ms"]) == ("eu-1", "70")
    assert "socket.nagle.disable" not in options


def test_every_option_that_is_carried_over_is_one_of_librdkafka() -> None:
    """That Java has them too, a test beside Spark shows."""
    texts = {
        "client.dns.lookup": "use_all_dns_ips",
        "ssl.endpoint.identification.algorithm": "https",
        "client.id": "a",
        "client.rack": "a",
        "sasl.kerberos.service.name": "a",
    }
    options: dict[str, Any] = {name: texts.get(name, "2000") for name in _EQUAL}
    confluent_kafka.Consumer({**options, "group.id": "g", "log_level": 0}).close()


def test_no_check_of_host_names_is_said_in_javas_way() -> None:
    assert (
        rendered({"kafka.client": {"ssl.endpoint.identification.algorithm": "none"}})[
            "ssl.endpoint.identification.algorithm"
        ]
        == ""
    )


@pytest.mark.parametrize(
    ("option", "value", "java"),
    [
        ("sasl.oauthbearer.client.id", "x", "sasl.jaas.config"),
        ("sasl.kerberos.keytab", "x", "sasl.jaas.config"),
        ("ssl.ca.pem", "x", "ssl.truststore."),
        ("ssl.key.pem", "x", "ssl.keystore."),
        ("ssl.keystore.location", "x", "ssl.keystore."),
        ("ssl.cipher.suites", "x", "ssl.cipher.suites"),
        ("ssl.crl.location", "x", "ssl.engine.factory.class"),
        ("enable.ssl.certificate.verification", False, "ssl.engine.factory.class"),
    ],
)
def test_option_that_protects_the_connection_is_never_dropped_silently(
    option: str, value: object, java: str
) -> None:
    given: dict[str, Any] = {"kafka.client": {option: value}}
    with pytest.raises(ConfigError) as raised:
        rendered(given)
    message = str(raised.value)
    assert message.startswith(f"kafka.client.{option}: ")
    assert java in message.partition("Fix: ")[2]
    assert "[spark.client]" in message

    name = java + "location" if java.endswith(".") else java
    assert rendered(given | {"spark.client": {name: "theirs"}})[name] == "theirs"


def test_option_by_the_name_that_sparks_source_has_for_it_is_refused() -> None:
    """It was handed on as kafka.kafka.…, and had no effect."""
    with pytest.raises(ConfigError, match="no effect") as raised:
        rendered({"spark.client": {"kafka.max.poll.records": "1"}})
    assert "Fix: 'max.poll.records'" in str(raised.value)


def test_check_of_certificates_that_is_on_anyway_is_no_reason_to_stop() -> None:
    assert "enable.ssl.certificate.verification" not in rendered(
        {"kafka.client": {"enable.ssl.certificate.verification": True}}
    )


@pytest.mark.parametrize("mechanism", ["GSSAPI", "OAUTHBEARER"])
def test_mechanism_whose_login_java_must_be_told_says_so(mechanism: str) -> None:
    given: dict[str, Any] = {"kafka.security_protocol": "SASL_PLAINTEXT", "kafka.sasl_mechanism": mechanism}
    with pytest.raises(
        ConfigError, match=r"kafka\.sasl_mechanism: .*sasl\.jaas\.config in the table \[spark\.client\]"
    ):
        rendered(given)
    login = "com.example.Login required;"
    assert rendered(given | {"spark.client": {"sasl.jaas.config": login}})["sasl.jaas.config"] == login


def test_secrets_given_to_java_are_hidden_and_what_eos_fixes_stays_fixed() -> None:
    given = {
        "spark.client": {"sasl.jaas.config": "pw", "ssl.keystore.key": "pw", "ssl.keystore.password": "pw"}
    }
    settings = settings_of(**given)
    assert {shown.value for shown in settings.shown()["spark"]["client"].values()} == {HIDDEN}
    assert "'pw'" not in repr(settings)
    with pytest.raises(ConfigError, match=r"spark\.client\.isolation\.level .*is fixed by eos"):
        rendered({"spark.client": {"isolation.level": "read_uncommitted"}})

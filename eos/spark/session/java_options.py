"""Java client options: how Spark's Kafka connector reaches the same cluster as librdkafka's clients.

The rule for what has no setting of its own: of ``[kafka.client]``, options that mean the same in both clients
are carried over; options that protect the connection and are spelt otherwise in Java are refused until their
counterpart stands in ``[spark.client]``; everything else tunes librdkafka alone and is left out.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from eos.kafka.config import client_config
from eos.settings import Settings
from eos.settings.problems import Problem, config_error
from eos.settings.secrets import revealed
from eos.settings.tables import KafkaSettings

# Equal in name, unit and meaning: librdkafka's CONFIGURATION.md against Java's ConsumerConfig (3.9). Not here:
# connections.max.idle.ms, where 0 means "never" to librdkafka and "at once" to Java.
_EQUAL = frozenset(
    {
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "metadata.max.age.ms",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "sasl.kerberos.service.name",
        "socket.connection.setup.timeout.ms",
        "ssl.endpoint.identification.algorithm",
    }
)
_JAAS, _TRUST, _KEY = "sasl.jaas.config", "ssl.truststore.", "ssl.keystore."
_CIPHERS, _ENGINE = "ssl.cipher.suites", "ssl.engine.factory.class"
# What an option of librdkafka begins with -> the Java option (or its beginning) that says the same; first match.
_COUNTERPARTS = (
    ("sasl.", _JAAS),
    ("enable.sasl.", _JAAS),
    ("https.", _JAAS),  # of the OAuth server
    ("ssl.ca.", _TRUST),
    ("ssl.certificate.", _KEY),
    ("ssl.key.", _KEY),
    ("ssl.keystore.", _KEY),
    ("ssl.cipher.", _CIPHERS),  # OpenSSL's names are not Java's
    ("ssl.curves.", _CIPHERS),
    ("ssl.sigalgs.", _CIPHERS),
    ("ssl.", _ENGINE),
    ("enable.ssl.", _ENGINE),
)
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
# org.apache.kafka.common.security.JaasConfig reads with a StreamTokenizer: backslashes escape as in C, and a
# line break ends the text.
_JAAS_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r"})
_KEY_BLOCK = re.compile(r"-+BEGIN ([A-Z0-9 ]*)PRIVATE KEY-+\s+([^-]*)-+END")
_SPARKS = "kafka."  # what Spark's own options of the source begin with
_READABLE_KEYS = ("", "ENCRYPTED ")  # PKCS#8
_PBES2 = bytes.fromhex("06092a864886f70d01050d")  # its object identifier, 1.2.840.113549.1.5.13, in DER


def java_client_options(settings: Settings) -> dict[str, str]:
    """The options that a Java client needs to reach the cluster of ``settings``, without any prefix.

    The values hold secrets (password, private key): hand them to the connector and to nothing that prints.
    Files are named, not shipped, but for the client's certificate and key, which Java takes as one: the file of
    the authority must exist wherever the client runs, as it must for librdkafka. Without one, librdkafka trusts
    the system's authorities and Java those of its runtime.

    Raises:
        ConfigError: no brokers are named; an option of ``[kafka.client]`` that protects the connection cannot be
            carried over; the private key has a form that Java's client cannot read.
    """
    kafka, given = settings.kafka, {name: _text(value) for name, value in settings.spark.client.items()}
    if problems := list(_left_behind(kafka, given)):
        raise config_error(problems)
    options = {"bootstrap.servers": str(client_config(settings)["bootstrap.servers"])}
    options |= {name: _text(value) for name, value in kafka.client.items() if name in _EQUAL}
    if options.get("ssl.endpoint.identification.algorithm", "").lower() == "none":
        options["ssl.endpoint.identification.algorithm"] = ""  # how Java says it
    options["security.protocol"] = kafka.security_protocol
    if kafka.sasl_mechanism is not None:
        options["sasl.mechanism"] = kafka.sasl_mechanism
        if kafka.sasl_mechanism in _LOGIN_MODULES and not _says(given, _JAAS):
            options[_JAAS] = _jaas(kafka)
    if kafka.ssl_ca_file is not None and not _says(given, _TRUST):
        options |= {f"{_TRUST}type": "PEM", f"{_TRUST}location": str(kafka.ssl_ca_file)}
    if kafka.ssl_key_file is not None and kafka.ssl_certificate_file is not None and not _says(given, _KEY):
        options |= {
            f"{_KEY}type": "PEM",
            f"{_KEY}key": _private_key(kafka.ssl_key_file),
            f"{_KEY}certificate.chain": _read(kafka.ssl_certificate_file, "kafka.ssl_certificate_file"),
        }
        if kafka.ssl_key_password is not None:
            options["ssl.key.password"] = revealed(kafka.ssl_key_password)
    return options | given


def _left_behind(kafka: KafkaSettings, given: Mapping[str, str]) -> Iterator[Problem]:
    mechanism = kafka.sasl_mechanism
    if mechanism is not None and mechanism not in _LOGIN_MODULES and not _says(given, _JAAS):
        what = f"{mechanism} needs a login module in Java, which eos cannot derive from librdkafka's options"
        yield Problem("kafka.sasl_mechanism", what, _fix(_JAAS))
    for name in given:
        if name.startswith(_SPARKS):
            yield Problem(
                f"spark.client.{name}",
                "has no effect",
                f"{name.removeprefix(_SPARKS)!r}, as Java's client has it",
            )
    for name, value in kafka.client.items():
        counterpart = next((java for rdkafka, java in _COUNTERPARTS if name.startswith(rdkafka)), None)
        harmless = name in _EQUAL or (name.startswith("enable.ssl.") and _text(value) == "true")
        if counterpart is not None and not harmless and not _says(given, counterpart):
            what = "protects the connection, and Java's Kafka client has no option that is equal"
            yield Problem(f"kafka.client.{name}", what, _fix(counterpart))


def _fix(java: str) -> str:
    name = f"{java}…" if java.endswith(".") else java
    return f"say it to Java too, as {name} in the table [spark.client], or leave it out"


def _says(given: Iterable[str], java: str) -> bool:
    return any(name.startswith(java) for name in given)


def _jaas(kafka: KafkaSettings) -> str:
    module = _LOGIN_MODULES[str(kafka.sasl_mechanism)]
    user = (kafka.sasl_username or "").translate(_JAAS_ESCAPES)
    password = (revealed(kafka.sasl_password) or "").translate(_JAAS_ESCAPES)
    return f'{module} required username="{user}" password="{password}";'


def _private_key(path: Path) -> str:
    text = _read(path, "kafka.ssl_key_file")
    found = _KEY_BLOCK.search(text)
    if found is None or found[1] not in _READABLE_KEYS:
        what = (
            "is not a private key in PKCS#8 (BEGIN PRIVATE KEY), the one form that Java's Kafka client reads"
        )
        fix = "openssl pkcs8 -topk8 -nocrypt -in old.pem -out new.pem, readable for this user alone"
        raise config_error([Problem("kafka.ssl_key_file", what, fix)])
    if found[1] and _PBES2 in _decoded(found[2]):
        # Java 17: "NoSuchAlgorithmException: PBES2 SecretKeyFactory not available".
        what = "is encrypted by PBES2, which Java's Kafka client cannot read"
        fix = "openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES -in old.pem -out new.pem; or ssl.keystore.… in [spark.client]"
        raise config_error([Problem("kafka.ssl_key_file", what, fix)])
    return text


def _decoded(block: str) -> bytes:
    try:
        return base64.b64decode("".join(block.split()))
    except binascii.Error:
        return b""


def _read(path: Path, name: str) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        what = f"{path} cannot be read as PEM ({type(error).__name__})"
        problem = Problem(name, what, "name the mounted PEM file")
    raise config_error([problem])  # outside of the except block: the chained error may quote the file


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

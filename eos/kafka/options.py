"""The client options of the settings as librdkafka judges them, before anything connects: unknown names and wrong values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from eos.kafka.fixed import FIXED_OPTIONS
from eos.settings import Settings, is_sensitive
from eos.settings.problems import Problem, config_error, nearest

# What is set most often, in the words that Java's clients have too; librdkafka's API lists no aliases.
_OFTEN_SET = (
    "allow.auto.create.topics",
    "batch.num.messages",
    "batch.size",
    "broker.address.family",
    "broker.address.ttl",
    "check.crcs",
    "client.dns.lookup",
    "client.id",
    "client.rack",
    "compression.codec",
    "compression.level",
    "compression.type",
    "connections.max.idle.ms",
    "enable.ssl.certificate.verification",
    "fetch.error.backoff.ms",
    "fetch.max.bytes",
    "fetch.message.max.bytes",
    "fetch.min.bytes",
    "fetch.queue.backoff.ms",
    "fetch.wait.max.ms",
    "linger.ms",
    "max.partition.fetch.bytes",
    "message.max.bytes",
    "metadata.max.age.ms",
    "queue.buffering.max.kbytes",
    "queue.buffering.max.messages",
    "queue.buffering.max.ms",
    "queued.max.messages.kbytes",
    "queued.min.messages",
    "receive.message.max.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "sasl.kerberos.keytab",
    "sasl.kerberos.principal",
    "sasl.kerberos.service.name",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "socket.connection.setup.timeout.ms",
    "socket.keepalive.enable",
    "socket.nagle.disable",
    "socket.receive.buffer.bytes",
    "socket.send.buffer.bytes",
    "ssl.ca.certificate.stores",
    "ssl.ca.pem",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "statistics.interval.ms",
    "topic.metadata.refresh.interval.ms",
)
_OF_SEVERAL = "Failed to create"  # options that belong together are judged when the client is made
_UNKNOWN = "No such configuration property"

_Option = tuple[str, str | int | float | bool]


def refuse_wrong(settings: Settings) -> None:
    """Refuse options that librdkafka does not know, or whose value it does not take.

    Raises:
        ConfigError: naming each, where it was given, what librdkafka says, and the name that was probably meant.
    """
    kafka = settings.kafka
    tables: Mapping[str, Mapping[str, str | int | float | bool]] = {
        "kafka.client": kafka.client,
        "kafka.producer": kafka.producer,
        "kafka.consumer": kafka.consumer,
    }
    if problems := [one for table, given in tables.items() for one in _problems(settings, table, given)]:
        raise config_error(problems)


def _problems(
    settings: Settings, table: str, given: Mapping[str, str | int | float | bool]
) -> Iterator[Problem]:
    for option in given.items():
        if said := _judged(option, of_consumer=table == "kafka.consumer"):
            name = f"{table}.{option[0]}"
            if said.startswith(_UNKNOWN):
                near = nearest(option[0], {*_OFTEN_SET, *FIXED_OPTIONS})
                what = "librdkafka has no such option"
                fix = (
                    f"did you mean {table}.{near}?"
                    if near
                    else "leave it out, or see librdkafka's CONFIGURATION.md"
                )
            else:
                what = "librdkafka does not take this value" if is_sensitive(option[0]) else said
                fix = "a value that librdkafka's CONFIGURATION.md allows"
            yield Problem(name, what, fix, settings.source_of(name))


@cache
def _judged(option: _Option, *, of_consumer: bool) -> str:
    """What librdkafka says against it; "" if nothing. A client without brokers connects to nothing, and takes 10 ms."""
    from confluent_kafka import (  # most processes set none, and load it later or never
        Consumer,
        KafkaException,
        Producer,
    )

    name, value = option
    alone = {name: value, "log_level": 0}
    try:
        if of_consumer:
            Consumer({**alone, "group.id": "eos"}).close()
        else:
            Producer(alone)
    except KafkaException as error:
        said = str(error.args[0].str()).strip()
        return "" if said.startswith(_OF_SEVERAL) else said
    except (TypeError, ValueError) as error:
        return str(error)
    return ""

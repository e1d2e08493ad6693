"""The client options that eos fixes, because the guarantee depends on them, and their refusal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from eos.settings import Settings
from eos.settings.problems import Problem, config_error

_DELIVERY = "eos derives it from the transaction: a record is delivered within transaction.timeout_ms or its transaction aborts"
_RESENDS = "it feeds the detection of requests that librdkafka sent twice: a late copy could end the next transaction"
_HIDDEN_RESENDS = (
    "a short value makes librdkafka resend requests silently, and a late copy could end the next transaction; "
    "unset, librdkafka ties it to the transaction timeout"
)
_ORDER = "the order of records within a partition and their delivery exactly once depend on it"
_OFFSETS = "eos commits the offsets inside the transaction; a second commit path would skip or repeat records"
_MEMBERS = "eos renders it from the ownership"
_CALLBACKS = "eos needs the client's callbacks itself"
_OWN_SETTING = "it has a setting of its own"

# option (in dots) -> (why it is fixed, what to use instead; "" if there is nothing)
_FIXED: dict[str, tuple[str, str]] = {
    "bootstrap.servers": ("all clients of a process use one cluster: a transaction never spans two", "kafka.bootstrap_servers"),
    "metadata.broker.list": ("all clients of a process use one cluster: a transaction never spans two", "kafka.bootstrap_servers"),
    "security.protocol": (_OWN_SETTING, "kafka.security_protocol"),
    "sasl.mechanism": (_OWN_SETTING, "kafka.sasl_mechanism"),
    "sasl.mechanisms": (_OWN_SETTING, "kafka.sasl_mechanism"),
    "sasl.username": (_OWN_SETTING, "kafka.sasl_username"),
    "sasl.password": (_OWN_SETTING, "kafka.sasl_password or kafka.sasl_password_file"),
    "ssl.ca.location": (_OWN_SETTING, "kafka.ssl_ca_file"),
    "ssl.certificate.location": (_OWN_SETTING, "kafka.ssl_certificate_file"),
    "ssl.key.location": (_OWN_SETTING, "kafka.ssl_key_file"),
    "ssl.key.password": (_OWN_SETTING, "kafka.ssl_key_password or kafka.ssl_key_password_file"),
    # what the producer's guarantee depends on
    "metadata.recovery.strategy": (
        "with its default, send_offsets never returns once all connections broke (librdkafka issue 5511)",
        "",
    ),
    "transactional.id": ("it names the shard, so that the next owner of the shard fences the previous one", "the job's name, the group and ownership.ordinal"),
    "transaction.timeout.ms": (_OWN_SETTING, "transaction.timeout_ms"),
    "enable.idempotence": (_ORDER, ""),
    "acks": (_ORDER, ""),
    "request.required.acks": (_ORDER, ""),
    "max.in.flight": (_ORDER, ""),
    "max.in.flight.requests.per.connection": (_ORDER, ""),
    "message.send.max.retries": (_DELIVERY, "transaction.timeout_ms"),
    "retries": (_DELIVERY, "transaction.timeout_ms"),
    "message.timeout.ms": (_DELIVERY, "transaction.timeout_ms"),
    "delivery.timeout.ms": (_DELIVERY, "transaction.timeout_ms"),
    "delivery.report.only.error": ("eos waits for the first delivery report before it aborts", ""),
    "enable.gapless.guarantee": ("it turns errors that an abort repairs into fatal ones", ""),
    "queuing.strategy": (_ORDER, ""),
    "partitioner": ("murmur2_random puts keys where Java clients and Spark put them, so that pipelines stay co-partitioned", "an explicit partition in the output record"),
    "socket.timeout.ms": (_HIDDEN_RESENDS, ""),
    "debug": (_RESENDS, "observe.log_level"),
    "log.level": (_RESENDS, "observe.log_level"),
    "log.queue": (_RESENDS, ""),
    "log.connection.close": (_RESENDS, ""),
    "logger": (_RESENDS, "observe.log_level"),
    # what the consumer's guarantee depends on
    "group.id": (_OWN_SETTING, "group (EOS_GROUP)"),
    "group.instance.id": (_MEMBERS, "ownership.ordinal and ownership.static_membership"),
    "group.protocol": (_MEMBERS, "ownership.protocol"),
    "group.protocol.type": (_MEMBERS, ""),
    "partition.assignment.strategy": (_MEMBERS, "ownership.protocol"),
    "session.timeout.ms": (_MEMBERS, "ownership.session_timeout_ms"),
    "heartbeat.interval.ms": (_MEMBERS, ""),
    "max.poll.interval.ms": (_MEMBERS, "ownership.max_poll_interval_ms"),
    "enable.auto.commit": (_OFFSETS, "transaction.interval_ms"),
    "auto.commit.enable": (_OFFSETS, "transaction.interval_ms"),
    "auto.commit.interval.ms": (_OFFSETS, "transaction.interval_ms"),
    "enable.auto.offset.store": (_OFFSETS, ""),
    "offset.store.method": (_OFFSETS, ""),
    "offset.store.path": (_OFFSETS, ""),
    "offset.store.sync.interval.ms": (_OFFSETS, ""),
    "isolation.level": ("input must be read_committed: an aborted record is not there", ""),
    "auto.offset.reset": ("a position that is gone from the log is an error, never a silent jump", "input.start, for a group without offsets"),
    "enable.partition.eof": ("eos learns from it that the input is caught up", ""),
    "statistics.interval.ms": ("eos reads from the statistics which brokers a consumer is connected to; nobody else gets them, and a producer has none", "an event listener"),
    # callbacks that end in neither .cb nor .callback
    "on.delivery": (_CALLBACKS, "an event listener"),
    "on.commit": (_CALLBACKS, "an event listener"),
    "enabled.events": (_CALLBACKS, "an event listener"),
    "opaque": (_CALLBACKS, ""),
    "interceptors": (_CALLBACKS, "an event listener"),
    "default.topic.conf": ("it would override topic options unseen", "the options themselves, under [kafka.producer]"),
}  # fmt: skip
FIXED_OPTIONS = frozenset(_FIXED)
# A consumer sends nothing whose late copy could harm, so there the client's own figure may stand.
_ALLOWED_FOR = {"socket.timeout.ms": "kafka.consumer"}


def refuse_fixed(settings: Settings) -> None:
    """Refuse the options that eos fixes.

    Raises:
        ConfigError: naming each such option, where it was given, why it is fixed, and what to use instead.
    """
    problems = []
    for table, given in _tables(settings):
        for option in given:
            if (refused := _refusal(table, option)) is not None:
                why, fix = refused
                name = f"{table}.{option}"
                what = f"{option} is fixed by eos: {why}"
                problems.append(Problem(name, what, fix, settings.source_of(name)))
    if problems:
        raise config_error(problems)


def _tables(settings: Settings) -> Iterator[tuple[str, Mapping[str, object]]]:
    kafka = settings.kafka
    yield "kafka.client", kafka.client
    yield "kafka.producer", kafka.producer
    yield "kafka.consumer", kafka.consumer
    yield "spark.client", settings.spark.client


def _refusal(table: str, option: str) -> tuple[str, str] | None:
    """Why a table may not set an option and the fix; ``None`` if it may."""
    if _ALLOWED_FOR.get(option) == table:
        return None
    why, instead = _FIXED.get(option, ("", ""))
    if option.endswith((".cb", ".callback")):
        why, instead = _CALLBACKS, "an event listener"
    if not why:
        return None
    fix = f"leave it out and use {instead}" if instead else "leave it out"
    return why, fix

"""What librdkafka's clients are configured with: the settings in its own options. The dicts hold secrets."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from eos.base.commands import forgotten_local
from eos.kafka.fixed import refuse_fixed
from eos.kafka.options import refuse_wrong
from eos.offsets import Partition
from eos.settings import Settings
from eos.settings.problems import Problem, config_error
from eos.settings.secrets import revealed

# librdkafka pauses a partition's fetches this long once its queue is full: its 1000 ms let a loop that
# catches up idle most of the time; 2 ms brought 133,000 to 748,000 records/s in one run.
_FETCH_QUEUE_BACKOFF_MS = 2
# Fetched ahead per partition. The default of 100,000 costs 40 MB more at the same rate (measured, 4 partitions).
_QUEUED_MIN_MESSAGES = 20_000
# How late new partitions of an input topic are noticed (the group is then rebalanced), and that one was deleted.
_METADATA_REFRESH_MS = 30_000
_MAX_QUEUED_RECORDS = 1_000_000
# A member learns of a rebalance by its heartbeat. In the second round of the cooperative protocol, the partitions that
# move belong to no member until each has come back (measured: 3.2 s at 3 s, 0.7 s at 0.5 s).
_HEARTBEAT_MS = 500
_HEARTBEATS_PER_SESSION = (
    3  # Kafka's own advice, at least: else a member that lives is dropped for one late heartbeat
)
# A transaction that begins before the markers of the last one are written is answered to wait (CONCURRENT_TRANSACTIONS).
# librdkafka asks again after 20 ms when it adds partitions, as the Java client does, and after this when it adds
# offsets (rdkafka_txnmgr.c): its default of 100 ms was the length of most transactions of 10 ms.
_RETRY_BACKOFF_MS = 20
# For clients that are opened to ask, or to own a shard: they come by their first connection without librdkafka's waits.
QUICKLY: Mapping[str, str | int] = {
    # A client drops its bootstrap connection once it knows the brokers, and connects to one of them no sooner than half
    # of this later (sparse connections in rdkafka_conf.c). librdkafka's 100 ms made each client wait 50 ms before its
    # first question (measured: 58 ms to the first answer, now 17). Retries still grow to 10 s.
    "reconnect.backoff.ms": 20,
    # With its default, rebootstrap, a consumer whose brokers are all gone connects anew without any backoff: 150 refused
    # connections a second, 40 with librdkafka's 100 ms, and 1 with this (measured with 2.16). The loop's own consumer
    # keeps both defaults: it lives long, and finds the brokers of a cluster whose addresses have all changed.
    "metadata.recovery.strategy": "none",
}
# A topic takes batches of up to 1,048,588 bytes by default (max.message.bytes), and Java's clients write such records;
# librdkafka's own 1,000,000 would stop a copy of them. A dead letter has up to some 6,000 bytes of headers more than its record.
# The topic's limit is what counts then. Batches of several records stay below batch.size.
MAX_MESSAGE_BYTES = 1_048_588 + 10_000
_LOG_LEVEL_INFO = 6  # REQTMOUT lines, which show a resend, are not written at 3
# By which a member of a group is known for one of eos's, where it has no group.instance.id and settings name no other.
CLIENT_ID = "eos"
# org.apache.kafka.common.requests.JoinGroupRequest: an instance id is checked like a topic name.
_NO_INSTANCE_ID = re.compile(r"[^A-Za-z0-9._-]")
_MAX_INSTANCE_ID_CHARS = 249 - 5  # what a member adds that joins anew, see eos.watches.unowned
_MAX_TAIL_CHARS = 20  # of an instance id: a digest and an ordinal
_DIGEST_CHARS = 8  # of what a member reads: two that differ are hardly ever taken for the same


def client_config(settings: Settings) -> dict[str, Any]:
    """What every client of the process shares: the cluster, its security, ``[kafka.client]``.

    Raises:
        ConfigError: no brokers are named, or an option is given that eos fixes.
    """
    refuse_fixed(settings)
    refuse_wrong(settings)
    kafka = settings.kafka
    if not kafka.bootstrap_servers:
        what = "is missing: nothing says where Kafka is"
        fix = f"{forgotten_local()}EOS_KAFKA__BOOTSTRAP_SERVERS=host:9092, or bootstrap_servers in the table [kafka]"
        raise config_error([Problem("kafka.bootstrap_servers", what, fix)])
    own = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "security.protocol": kafka.security_protocol,
        "sasl.mechanism": kafka.sasl_mechanism,
        "sasl.username": kafka.sasl_username,
        "sasl.password": revealed(kafka.sasl_password),
        "ssl.ca.location": _text(kafka.ssl_ca_file),
        "ssl.certificate.location": _text(kafka.ssl_certificate_file),
        "ssl.key.location": _text(kafka.ssl_key_file),
        "ssl.key.password": revealed(kafka.ssl_key_password),
    }
    return {**kafka.client, **{name: value for name, value in own.items() if value is not None}}


def producer_config(settings: Settings, transactional_id: str) -> dict[str, Any]:
    """The transactional producer of a shard. What the guarantee depends on comes last, so nothing overrides it.

    Raises:
        ConfigError: as `client_config`.
    """
    transaction = settings.transaction
    defaults = {
        # Room for a transaction's output and what follows it; a full queue is met by poll and retry.
        "queue.buffering.max.messages": max(_MAX_QUEUED_RECORDS, 2 * transaction.max_records),
        "retry.backoff.ms": _RETRY_BACKOFF_MS,
        "message.max.bytes": MAX_MESSAGE_BYTES,
        # How long a topic may take to appear. By librdkafka's default of 30 s a misspelt or deleted output is named that late, or not
        # at all where the transaction is shorter.
        "topic.metadata.propagation.max.ms": 10_000,
    }
    fixed = {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": transaction.timeout_ms,
        "message.timeout.ms": transaction.timeout_ms,  # librdkafka refuses more than the transaction's
        "enable.idempotence": True,
        "partitioner": "murmur2_random",  # the Java client's; librdkafka's own default is CRC32
        # Together they show requests that librdkafka sent twice: without debug=broker, repeats of a
        # disconnect are suppressed for 30 s (2 of 4 resends left no line; with it, 4 of 4 did). feature: how old each broker is;
        # eos: eos.kafka.implicit_acks.
        "debug": "broker,feature,eos",
        "log.connection.close": True,
        "log_level": _LOG_LEVEL_INFO,
    }
    return _merged(settings, defaults, settings.kafka.producer, fixed)


def consumer_config(
    settings: Settings, group: str, ordinal: int | None, inputs: Iterable[Partition] = ()
) -> dict[str, Any]:
    """A consumer of committed records that neither commits by itself nor jumps.

    Args:
        settings: the settings.
        group: the group whose offsets are read and committed.
        ordinal: of this instance; with group ownership and static membership it names the member …
        inputs: … together with all partitions of its input topics. A static member that comes back within its session
            gets its old assignment without a rebalance, so a member that is to read more has to be a new one.

    Raises:
        ConfigError: as `client_config`.
    """
    ownership = settings.ownership
    fixed: dict[str, Any] = {
        "group.id": group,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "max.poll.interval.ms": ownership.max_poll_interval_ms,
    }
    if ownership.mode == "group" and ownership.protocol == "consumer":
        fixed["group.protocol"] = "consumer"  # KIP-848 refuses a session timeout and an assignment strategy
    else:
        # librdkafka refuses more than max.poll.interval.ms, of a consumer without membership too.
        fixed["session.timeout.ms"] = min(ownership.session_timeout_ms, ownership.max_poll_interval_ms)
        if ownership.mode == "group":
            session_ms = ownership.session_timeout_ms
            fixed["heartbeat.interval.ms"] = min(_HEARTBEAT_MS, session_ms // _HEARTBEATS_PER_SESSION)
            fixed["partition.assignment.strategy"] = "cooperative-sticky"
    # Not with KIP-848: there a replacement is refused (UNRELEASED_INSTANCE_ID, fatal in librdkafka) until the broker's
    # own session timeout has dropped the member that was killed.
    classic = ownership.mode == "group" and ownership.protocol == "cooperative"
    if classic and ownership.static_membership and ordinal is not None:
        fixed["group.instance.id"] = _instance_id(group, ordinal, inputs)
    defaults = {
        "client.id": CLIENT_ID,
        "check.crcs": True,  # as in Java; without it a record that was damaged on its way is processed as it came
        "fetch.queue.backoff.ms": _FETCH_QUEUE_BACKOFF_MS,
        "queued.min.messages": _QUEUED_MIN_MESSAGES,
        "topic.metadata.refresh.interval.ms": _METADATA_REFRESH_MS,
    }
    return _merged(settings, defaults, settings.kafka.consumer, fixed)


def member_ids(settings: Settings, group: str) -> tuple[str, re.Pattern[str]]:
    """The client.id of the members of a job with these settings, and the form of their group.instance.ids."""
    given = {**settings.kafka.client, **settings.kafka.consumer}
    name = _NO_INSTANCE_ID.sub("_", group)
    begins = re.escape(name[: _MAX_INSTANCE_ID_CHARS - _MAX_TAIL_CHARS])
    # Of a long name `_instance_id` cuts off as much as it has to.
    rest = "" if re.escape(name) == begins else ".*"
    form = rf"{begins}{rest}(-[0-9a-f]{{{_DIGEST_CHARS}}})?-\d+(\.[0-9a-f]{{4}})?"  # eos.watches.unowned adds the last part
    # As librdkafka reads it.
    return str(given.get("client.id", CLIENT_ID)).lstrip() or "rdkafka", re.compile(form, re.ASCII)


def _merged(
    settings: Settings, defaults: dict[str, Any], given: dict[str, Any], fixed: dict[str, Any]
) -> dict[str, Any]:
    return {**defaults, **client_config(settings), **given, **fixed}


def _instance_id(group: str, ordinal: int, inputs: Iterable[Partition]) -> str:
    # Unique within its group, which is all that Kafka asks; a group id may hold what an instance id may not.
    counts = sorted(Counter(partition.topic for partition in inputs).items())
    tail = (
        f"-{hashlib.sha256(repr(counts).encode()).hexdigest()[:_DIGEST_CHARS]}-{ordinal}"
        if counts
        else f"-{ordinal}"
    )
    return _NO_INSTANCE_ID.sub("_", group)[: _MAX_INSTANCE_ID_CHARS - len(tail)] + tail


def _text(path: object) -> str | None:
    return None if path is None else str(path)

"""What a KafkaError of a call means to its holder: one table for the producer's calls, one for the consumer's.

librdkafka's documented order is abortable, then retriable, and *every unflagged error is fatal*
(rdkafka.h, rd_kafka_txn_*; INTRODUCTION.md "Transactional producer"). Two things come before the flags:

- ``_STATE`` is a caller's bug, except in produce() and send_offsets, where librdkafka also answers it for a
  transaction that has failed in the background.
- A fatal state that this producer has shown before. After a fence librdkafka answers begin and abort
  with ``_CONFLICT``, flagged retriable, for ever (measured with 2.16): the flag alone would spin.

A class is never chosen by an error's text, and never by its code alone where the flags say more. The one exception is
a number of TLS: from version 1.3 on a client's certificate is refused when the handshake is over for the client, and
librdkafka reports a broken connection like any other (``_TRANSPORT``), in whose text OpenSSL has put the alert's number.
"""

from __future__ import annotations

import re

from confluent_kafka import KafkaError, KafkaException

from eos.base.calls import Call
from eos.base.commands import suggested
from eos.errors import (
    COMMITTED_SHOW,
    ONE_OWNER,
    AbortableError,
    CommitOutcomeUnknownError,
    ConfigError,
    EosError,
    FencedError,
    OffsetGapError,
    RebalancedError,
    RecordRefusedError,
    ReopenError,
    RetriableError,
    TransactionExpiredError,
    UnavailableError,
    UnclassifiedError,
    UnprovenFenceError,
    UsageError,
)

# librdkafka turns both of the broker's answers into _FENCED; the raw codes still occur in delivery reports.
_FENCES = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}

ID_EXPIRED = "INVALID_PRODUCER_ID_MAPPING"

# The broker no longer knows this producer as it is, which says nothing of a rival: 49 and 59 after idle
# expiry (transactional.id.expiration.ms, producer.id.expiration.ms), 48 and 45 after an abort that raced
# the first AddPartitions (librdkafka issue 4849) or a late packet.
_PRODUCER_IS_OVER = {
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError.INVALID_TXN_STATE,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
}

_GROUP_MOVED_ON = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.FENCED_MEMBER_EPOCH,
    KafkaError._ASSIGNMENT_LOST,
}

_ACCESS = "access was refused. Fix: grant what `eos acl show MODULE:NAME` prints for the job"
_FIXES = {
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: f"{_ACCESS}: Write and Describe on its TransactionalId prefix",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: f"{_ACCESS}: Read on input topics, Write on output topics. `eos verify` "
    "reads both: `--for verify`",
    KafkaError.GROUP_AUTHORIZATION_FAILED: f"{_ACCESS}: Read on the group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: f"{_ACCESS} on the cluster",
    KafkaError.SASL_AUTHENTICATION_FAILED: "the broker refused the credentials. Fix: kafka.sasl_username and "
    "kafka.sasl_password (or its _file); with OAUTHBEARER sasl.oauthbearer.… in [kafka.client]",
    KafkaError._AUTHENTICATION: "the broker refused the credentials. Fix: kafka.sasl_username, kafka.sasl_password (or "
    "its _file) and kafka.sasl_mechanism; with OAUTHBEARER sasl.oauthbearer.… in [kafka.client]",
    KafkaError._SSL: "no secure connection. Fix: kafka.ssl_ca_file (the brokers' authority); the host names in "
    "kafka.bootstrap_servers and in the brokers' certificates; certificates that have expired, the brokers' or "
    "kafka.ssl_certificate_file; kafka.security_protocol",
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "transaction.timeout_ms is above the broker's "
    "transaction.max.timeout.ms. Fix: lower the setting, or raise the broker's limit",
    KafkaError._UNSUPPORTED_FEATURE: "the broker is too old for transactions with group metadata (KIP-447): "
    "Apache Kafka 2.5 or newer is needed",
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT: "the topic's message format has no transactions. "
    "Fix: message.format.version 0.11 or newer",
    KafkaError.OFFSET_METADATA_TOO_LARGE: "eos stores with each offset who has committed it, in up to 1,000 bytes, and the "
    "broker's offset.metadata.max.bytes is below that. Fix: raise it; its default is 4096",
    KafkaError.GROUP_ID_NOT_FOUND: "the group was deleted, and its committed offsets with it. The next start says how to go on",
    KafkaError.INVALID_GROUP_ID: "the group id is not valid. Fix: the setting group (EOS_GROUP)",
    KafkaError._UNKNOWN_GROUP: "the consumer has no group. Fix: the setting group (EOS_GROUP)",
}

_ALERT = re.compile(r"\bSSL alert number (\d+)")
# RFC 8446, section 6. Java's brokers say 46 for one that has expired too.
_CERTIFICATE_ALERTS = {
    42: "bad, or missing",
    43: "of a kind that is not supported",
    44: "revoked",
    45: "expired",
    46: "expired, or not acceptable in another way",
    48: "of an authority that the broker does not know",
    116: "missing",
}

# librdkafka's guess where a connection ends before its first answer. Brokers of 2016 are seldom the cause.
_OLD_BROKER = re.compile(r"might be caused by .*?\(see api\.version\.request\)")
_NO_FIRST_ANSWER = "the broker starts or stops, or the listener speaks another kafka.security_protocol"

# A job that created its topics would choose their partitions and replicas by chance, and a misspelt name would go unnoticed.
_CREATE = "create it: `eos local topics NAME` on a Kafka of `eos local`, elsewhere kafka-topics.sh --create"

_PERMANENT_IN_PRODUCE = {
    KafkaError.MSG_SIZE_TOO_LARGE: "the record, or the batch it was sent in, is larger than allowed. Fix: "
    "message.max.bytes in [kafka.producer] and max.message.bytes of the topic; batch.size in [kafka.producer] below "
    "these, if the record itself is; or smaller records. A dead letter is larger than its record, by up to 6,000 bytes of headers: "
    "give its topic a larger max.message.bytes",
    KafkaError.RECORD_LIST_TOO_LARGE: "the records are larger than the topic's max.message.bytes",
    KafkaError._UNKNOWN_TOPIC: f"the topic does not exist. Fix: {_CREATE}",
    KafkaError.UNKNOWN_TOPIC_OR_PART: f"the topic or partition does not exist. Fix: {_CREATE}",
    KafkaError._UNKNOWN_PARTITION: "the partition does not exist. Fix: a partition of an output that its topic has, or none: then "
    "the key's hash decides",
    KafkaError.TOPIC_EXCEPTION: "the topic name is not valid",
    KafkaError.INVALID_TIMESTAMP: "the broker takes no such timestamp",
    KafkaError.INVALID_RECORD: "the broker refused the record (in a compacted topic for want of a key; or by a schema of its "
    "own)",
    KafkaError._INVALID_ARG: "the record is not valid",
}


# What librdkafka asks again for: the group takes this member once others have left it.
_GROUP_REFUSES = {
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: "a member of this group shares its partitions out by another strategy, so it is another "
    "program, or of another ownership.protocol. Fix: a group of its own for each program; one protocol for all instances of a job",
    KafkaError.GROUP_MAX_SIZE_REACHED: "the brokers' group.max.size (with ownership.protocol = 'consumer' their "
    "group.consumer.max.size). Fix: fewer instances, or a larger one",
}


def classify(
    call: Call,
    error: KafkaError,
    *,
    fatal: KafkaError | None = None,
    expired: bool = False,
    doubt: str = "",
) -> EosError:
    """The error to raise for what a call of the *transactional producer* returned.

    Args:
        call: the call that failed.
        error: what it returned.
        fatal: the fatal error that this producer has shown before, if any.
        expired: whether the transaction has been open for transaction.timeout.ms or longer. Then a
            fence proves nothing: the coordinator's own abort looks the same (KIP-588 is not supported).
        doubt: what else than another owner may have caused a fence; "" if it is to be believed.
    """
    if fatal is None and error.fatal():
        fatal = error
    if fatal is None and error.code() == KafkaError._STATE:
        return _state_error(call, error)
    if fatal is not None:
        return _fatal(call, fatal, expired, doubt)
    if error.code() in _FENCES:  # flagged abortable where librdkafka does not list code 90
        return _fenced(call, error, expired, doubt)
    if error.txn_requires_abort():
        return _abortable(call, error)
    if error.retriable():
        return _retriable(call, error)
    return _unflagged(call, error)


def classify_delivery(
    error: KafkaError, *, topic: str, expired: bool = False, doubt: str = ""
) -> EosError | None:
    """What a failed delivery report means; None for records that were purged by an abort."""
    code = error.code()
    if code in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
        return None
    if code in _FENCES:
        return _fenced(Call.PRODUCE, error, expired, doubt)
    if code in _FIXES:
        return ConfigError(f"{topic}: {_text(Call.PRODUCE, error)}: {_FIXES[code]}", code=error.name())
    if code in _PERMANENT_IN_PRODUCE:
        return RecordRefusedError(
            f"{topic}: {_text(Call.PRODUCE, error)}: {_PERMANENT_IN_PRODUCE[code]}", code=error.name()
        )
    return AbortableError(f"{topic}: {_text(Call.PRODUCE, error)}", code=error.name())


def classify_consumer(call: Call, error: KafkaError) -> EosError:
    """The error to raise for what a call of the *consumer* returned.

    Its flags mean little here: ``committed()`` times out unflagged while another id's transaction is
    pending on the offsets (measured), which is retriable up to the transaction's timeout.
    """
    code = error.code()
    text = _text(call, error)
    if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION):
        return OffsetGapError(
            f"{text}: the position is no longer in the log, so input was deleted (retention, DeleteRecords) or "
            "truncated before it was processed. Nothing is skipped silently. Fix: decide where to go on, and set the "
            f"group's offsets while the job is stopped: {suggested('offsets set', '--to', 'WHERE', job=True)}",
            code=error.name(),
        )
    if code in _FIXES:
        return ConfigError(f"{text}: {_FIXES[code]}", code=error.name())
    if code in (KafkaError.FENCED_INSTANCE_ID, KafkaError._FENCED):
        return FencedError(f"{text}: another member joined under this group.instance.id", code=error.name())
    if code in _GROUP_MOVED_ON:
        return RebalancedError(text, code=error.name())
    if code == KafkaError._STATE:
        return UsageError(text, code=error.name())
    if code == KafkaError._BAD_COMPRESSION:
        # zstd has no size in front: librdkafka grows its buffer up to this option, and then says so in a debug line only.
        return ConfigError(
            f"{text}: a batch cannot be decompressed; it may need more room than receive.message.max.bytes (100,000,000 if not "
            "set). Fix: a larger receive.message.max.bytes in [kafka.consumer], up to 2147483647; if that does not help, the batch "
            "is damaged",
            code=error.name(),
        )
    if code in _GROUP_REFUSES:
        text = f"{text}: {_GROUP_REFUSES[code]}"
        if error.fatal():  # by KIP-848 a client asks once
            return UnavailableError(text, code=error.name())
    if error.fatal() or code == KafkaError._BAD_MSG:
        # Records that cannot be read must not be passed over.
        return UnclassifiedError(text, code=error.name())
    # Whatever else a consumer reports is a broker that is away, moving or loading: librdkafka goes on by
    # itself, and the caller's deadline bounds it.
    return RetriableError(text, code=error.name())


def refused_connection(call: Call, error: KafkaError) -> ConfigError | None:
    """What an error *event* of a refused connection means; None for any other event.

    librdkafka goes on trying after these for ever, so the calls that wait only time out: the event has the reason.
    """
    code = error.code()
    if code in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL):
        return ConfigError(f"{_text(call, error)}: {_FIXES[code]}", code=error.name())
    alert = _ALERT.search(error.str()) if code == KafkaError._TRANSPORT else None
    if alert is None or int(alert[1]) not in _CERTIFICATE_ALERTS:
        return None
    return ConfigError(
        f"{_text(call, error)}: the broker refused this client's certificate ({_CERTIFICATE_ALERTS[int(alert[1])]}). "
        "Fix: kafka.ssl_certificate_file and kafka.ssl_key_file, of an authority that the broker trusts and not expired",
        code=error.name(),
    )


def lost_result(call: Call, error: UnicodeDecodeError, *, commit_sent: bool) -> EosError:
    """Of a producer's call that raised for a line of librdkafka's log that is no text, in place of its own result."""
    kind = CommitOutcomeUnknownError if commit_sent else RetriableError
    return kind(f"{call}: its result is lost by a line of librdkafka's log: {error}")


def refused_options(client: str, error: KafkaException) -> ConfigError:
    """What librdkafka says of the options that a client (``producer``, ``consumer``, …) was to be made with."""
    cause = error.args[0]
    text = cause.str() if isinstance(cause, KafkaError) else str(cause)
    return ConfigError(f"librdkafka refuses the {client}'s options: {text}")


def no_topic(*topics: str) -> ConfigError:
    """The error for topics that do not exist."""
    named = ", ".join(map(repr, topics))
    return ConfigError(f"topic {named} does not exist. Fix: {_CREATE}")


def _state_error(call: Call, error: KafkaError) -> EosError:
    if call in (Call.PRODUCE, Call.SEND_OFFSETS):
        return AbortableError(
            f"{_text(call, error)}: the transaction has failed in the background", code="_STATE"
        )
    return UsageError(_text(call, error), code="_STATE")


def _fatal(call: Call, error: KafkaError, expired: bool, doubt: str) -> EosError:
    code = error.code()
    if code in _FENCES:
        return _fenced(call, error, expired, doubt)
    if code in _FIXES:
        return ConfigError(f"{_text(call, error)}: {_FIXES[code]}", code=error.name())
    if call is Call.COMMIT:
        # Among them: EndTxn succeeded, but the local state had already failed. The output IS committed then.
        return CommitOutcomeUnknownError(
            f"{_text(call, error)}: it may have happened or not; {COMMITTED_SHOW}", code=error.name()
        )
    if code in _PRODUCER_IS_OVER:
        return ReopenError(f"{_text(call, error)}: the producer must be reopened", code=error.name())
    return UnclassifiedError(_text(call, error), code=error.name())


def _fenced(call: Call, error: KafkaError, expired: bool, doubt: str) -> FencedError | ReopenError:
    text = _text(call, error)
    if expired:
        return TransactionExpiredError(
            f"{text}: the transaction was open for transaction.timeout_ms or longer, so the coordinator may have aborted it. Whether "
            "another owner has come instead shows in the reopen. Fix, where it happens again and again: a machine that does not "
            "stand still (suspended, or out of processor time), or a longer transaction.timeout_ms",
            code=error.name(),
        )
    if doubt:
        return UnprovenFenceError(
            f"{text}: the transaction coordinator has a newer epoch of this transactional.id. It may be that of another "
            f"owner, or come from {doubt}. Only a comparison of committed offsets shows which",
            code=error.name(),
        )
    return FencedError(
        f"{text}: a newer producer of this transactional.id exists, so another owner has the shard. "
        + ONE_OWNER,
        code=error.name(),
    )


def _abortable(call: Call, error: KafkaError) -> EosError:
    code = error.code()
    text = _text(call, error)
    if code in _GROUP_MOVED_ON:
        return RebalancedError(
            f"{text}: the group moved on while the transaction was open", code=error.name()
        )
    if code in _FIXES:
        return ConfigError(f"{text}: {_FIXES[code]}", code=error.name())
    if code == KafkaError.INVALID_PRODUCER_ID_MAPPING:
        return expired_id(text)
    if code == KafkaError._INCONSISTENT:
        return AbortableError(f"{text}: a record of the transaction was not delivered", code=error.name())
    return AbortableError(text, code=error.name())


def expired_id(text: str) -> ReopenError:
    """The coordinator has forgotten the transactional.id, or has given it another producer id since.

    An abort is not for such a transaction: librdkafka would initialise the id anew inside of it, and so fence its owner of today
    (KAFKA-18019; measured with 2.16).
    """
    return ReopenError(
        f"{text}: the cluster has forgotten this transactional.id (unused for transactional.id.expiration.ms, 7 days by default), "
        "and another owner may have come since. What was not committed is not visible",
        code=ID_EXPIRED,
    )


def _retriable(call: Call, error: KafkaError) -> EosError:
    code = error.code()
    text = _text(call, error)
    if code in (KafkaError._CONFLICT, KafkaError._PREV_IN_PROGRESS):
        # Flagged retriable, but it never ends: another call of this producer has to be resumed first.
        return UsageError(f"{text}: another call of this producer has not been finished", code=error.name())
    if call is Call.SEND_OFFSETS:
        # Not resumable: a second call would be a second request, and a late first one could then overwrite.
        return AbortableError(f"{text}: offsets are sent once per transaction", code=error.name())
    return RetriableError(text, code=error.name())


def _unflagged(call: Call, error: KafkaError) -> EosError:
    code = error.code()
    text = _text(call, error)
    if call is Call.PRODUCE and code in _PERMANENT_IN_PRODUCE:
        return RecordRefusedError(f"{text}: {_PERMANENT_IN_PRODUCE[code]}", code=error.name())
    if code in _FIXES:
        return ConfigError(f"{text}: {_FIXES[code]}", code=error.name())
    if call is Call.COMMIT:
        return CommitOutcomeUnknownError(
            f"{text}: it may have happened or not; {COMMITTED_SHOW}", code=error.name()
        )
    return UnclassifiedError(f"{text}: an error without a flag is fatal (rdkafka.h)", code=error.name())


def _text(call: Call, error: KafkaError) -> str:
    return f"{call}: {error.name()}: {_OLD_BROKER.sub(_NO_FIRST_ANSWER, error.str())}"

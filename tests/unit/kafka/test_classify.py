"""What each KafkaError of each call means: one row per code that librdkafka is known to present there.

The flags of a row are those that librdkafka sets for that call, read from its sources and measured. They
decide; the same code may stand in several rows with different flags and then means different things.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from confluent_kafka import KafkaError
from hypothesis import given, settings
from hypothesis import strategies as st

from eos.base.calls import Call
from eos.errors import (
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
    UnclassifiedError,
    UsageError,
)
from eos.kafka.classify import classify, classify_consumer, classify_delivery, refused_connection

CASES = settings(max_examples=25, deadline=None)
E = KafkaError
TRANSACTIONAL = [Call.INIT, Call.BEGIN, Call.PRODUCE, Call.SEND_OFFSETS, Call.COMMIT, Call.ABORT]
KNOWN = sorted(
    {value for name, value in vars(KafkaError).items() if name.isupper() and isinstance(value, int)}
)
UNKNOWN = 9999  # of a broker newer than this client


def error(code: int, flag: str = "", reason: str = "for the test") -> KafkaError:
    """A KafkaError with none or one of the flags: "fatal", "retriable", "abortable"."""
    return KafkaError(code, reason, flag == "fatal", flag == "retriable", flag == "abortable")


class Row(NamedTuple):
    """One row: what librdkafka presents, and what it means."""

    call: Call
    flag: str
    code: int
    expected: type[EosError]

    def __str__(self) -> str:
        return f"{self.call}-{self.flag or 'unflagged'}-{error(self.code).name()}"


def rows(call: Call, flag: str, expected: type[EosError], *codes: int) -> list[Row]:
    return [Row(call, flag, code, expected) for code in codes]


_COORDINATOR = (E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR)
_AWAY = (E._TIMED_OUT, E._TRANSPORT, E.REQUEST_TIMED_OUT)
_REFUSED_FATALLY = (E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, E.CLUSTER_AUTHORIZATION_FAILED)
_PRODUCER_FORGOTTEN = (E.UNKNOWN_PRODUCER_ID, E.INVALID_PRODUCER_ID_MAPPING)

ROWS: list[Row] = [
    # Init sends InitProducerId.
    *rows(Call.INIT, "fatal", ConfigError, *_REFUSED_FATALLY, E._UNSUPPORTED_FEATURE),
    *rows(Call.INIT, "fatal", ConfigError, E.INVALID_TRANSACTION_TIMEOUT, E.SASL_AUTHENTICATION_FAILED),
    *rows(Call.INIT, "fatal", FencedError, E._FENCED),
    *rows(Call.INIT, "fatal", UnclassifiedError, UNKNOWN),
    *rows(Call.INIT, "retriable", RetriableError, *_AWAY, *_COORDINATOR, E.CONCURRENT_TRANSACTIONS),
    *rows(Call.INIT, "", UsageError, E._STATE),  # init_transactions a second time
    *rows(Call.INIT, "", ConfigError, E._AUTHENTICATION),
    # Begin is local.
    *rows(Call.BEGIN, "", UsageError, E._STATE),
    *rows(Call.BEGIN, "retriable", UsageError, E._CONFLICT, E._PREV_IN_PROGRESS),
    *rows(Call.BEGIN, "fatal", FencedError, E._FENCED),
    # AddPartitionsToTxn answers in the background; the next call shows it
    *rows(Call.PRODUCE, "fatal", FencedError, E._FENCED),
    *rows(Call.PRODUCE, "fatal", ReopenError, E.INVALID_TXN_STATE),
    *rows(Call.PRODUCE, "fatal", ConfigError, *_REFUSED_FATALLY),
    *rows(Call.PRODUCE, "abortable", AbortableError, E.UNKNOWN_PRODUCER_ID, E.TRANSACTION_ABORTABLE, UNKNOWN),
    *rows(Call.PRODUCE, "abortable", ReopenError, E.INVALID_PRODUCER_ID_MAPPING),
    *rows(Call.PRODUCE, "abortable", ConfigError, E.TOPIC_AUTHORIZATION_FAILED),
    *rows(Call.PRODUCE, "", AbortableError, E._STATE),  # the transaction has failed before this record
    *rows(Call.PRODUCE, "", RecordRefusedError, E.MSG_SIZE_TOO_LARGE, E._UNKNOWN_TOPIC, E._UNKNOWN_PARTITION),
    *rows(Call.PRODUCE, "", RecordRefusedError, E.TOPIC_EXCEPTION, E._INVALID_ARG),
    *rows(Call.PRODUCE, "", UnclassifiedError, E._FATAL, UNKNOWN),
    # AddOffsetsToTxn and TxnOffsetCommit
    *rows(Call.SEND_OFFSETS, "fatal", FencedError, E._FENCED),
    *rows(Call.SEND_OFFSETS, "fatal", ReopenError, E.INVALID_TXN_STATE, E.INVALID_PRODUCER_ID_MAPPING),
    *rows(Call.SEND_OFFSETS, "fatal", ConfigError, *_REFUSED_FATALLY, E.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    *rows(Call.SEND_OFFSETS, "abortable", RebalancedError, E.ILLEGAL_GENERATION, E.UNKNOWN_MEMBER_ID),
    *rows(Call.SEND_OFFSETS, "abortable", RebalancedError, E.FENCED_INSTANCE_ID, E.STALE_MEMBER_EPOCH),
    *rows(Call.SEND_OFFSETS, "abortable", ConfigError, E.GROUP_AUTHORIZATION_FAILED),
    *rows(Call.SEND_OFFSETS, "abortable", ConfigError, E.TOPIC_AUTHORIZATION_FAILED),
    # 90 is not in librdkafka's list for these two requests, so a fence arrives flagged abortable.
    *rows(Call.SEND_OFFSETS, "abortable", FencedError, E._FENCED, E.PRODUCER_FENCED),
    *rows(Call.SEND_OFFSETS, "abortable", AbortableError, E.UNKNOWN_PRODUCER_ID, E.UNKNOWN_TOPIC_OR_PART),
    *rows(Call.SEND_OFFSETS, "abortable", ReopenError, E.INVALID_PRODUCER_ID_MAPPING),
    *rows(Call.SEND_OFFSETS, "abortable", AbortableError, E._TIMED_OUT, E.TRANSACTION_ABORTABLE, UNKNOWN),
    # Not resumable: a second call is a second request.
    *rows(Call.SEND_OFFSETS, "retriable", AbortableError, *_AWAY, *_COORDINATOR, E.CONCURRENT_TRANSACTIONS),
    *rows(Call.SEND_OFFSETS, "retriable", UsageError, E._CONFLICT, E._PREV_IN_PROGRESS),
    # Measured: the transaction failed in the background between AddOffsetsToTxn and TxnOffsetCommit.
    *rows(Call.SEND_OFFSETS, "", AbortableError, E._STATE),
    *rows(Call.SEND_OFFSETS, "", UnclassifiedError, UNKNOWN),
    # A commit ends in EndTxn.
    *rows(Call.COMMIT, "fatal", FencedError, E._FENCED),
    *rows(Call.COMMIT, "fatal", ConfigError, *_REFUSED_FATALLY),
    # Also "commit succeeded on the broker, but … failed locally": the output is committed then.
    *rows(Call.COMMIT, "fatal", CommitOutcomeUnknownError, E.INVALID_TXN_STATE, E._FAIL, UNKNOWN),
    *rows(Call.COMMIT, "fatal", CommitOutcomeUnknownError, *_PRODUCER_FORGOTTEN),
    *rows(Call.COMMIT, "abortable", AbortableError, E._INCONSISTENT),
    *rows(Call.COMMIT, "abortable", AbortableError, E.UNKNOWN_PRODUCER_ID, E.TRANSACTION_ABORTABLE),
    *rows(Call.COMMIT, "abortable", ReopenError, E.INVALID_PRODUCER_ID_MAPPING),
    *rows(Call.COMMIT, "abortable", AbortableError, E.UNKNOWN, E._TIMED_OUT, UNKNOWN),
    *rows(Call.COMMIT, "retriable", RetriableError, *_AWAY, *_COORDINATOR, E.CONCURRENT_TRANSACTIONS),
    *rows(Call.COMMIT, "retriable", UsageError, E._CONFLICT, E._PREV_IN_PROGRESS),
    *rows(Call.COMMIT, "", UsageError, E._STATE),
    *rows(Call.COMMIT, "", CommitOutcomeUnknownError, UNKNOWN),
    # So does an abort.
    *rows(Call.ABORT, "fatal", FencedError, E._FENCED),
    *rows(Call.ABORT, "fatal", ReopenError, E.INVALID_TXN_STATE),  # the abort raced the first AddPartitions
    *rows(Call.ABORT, "retriable", RetriableError, *_AWAY, *_COORDINATOR, E.CONCURRENT_TRANSACTIONS),
    *rows(Call.ABORT, "retriable", UsageError, E._CONFLICT, E._PREV_IN_PROGRESS),
    *rows(Call.ABORT, "", UsageError, E._STATE),
    *rows(Call.ABORT, "", UnclassifiedError, UNKNOWN),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_producer_row(row: Row) -> None:
    found = classify(row.call, error(row.code, row.flag))
    assert type(found) is row.expected
    assert found.code == error(row.code).name()
    assert str(row.call) in str(found)


def test_no_row_contradicts_another() -> None:
    keys = [(row.call, row.flag, row.code) for row in ROWS]
    assert len(keys) == len(set(keys))


# --- rules over the rows ---------------------------------------------------------------------------

codes = st.sampled_from(KNOWN) | st.integers(-32_768, 32_767)
calls = st.sampled_from(TRANSACTIONAL)
flags = st.sampled_from(["", "fatal", "retriable", "abortable"])

_REFUSED_RECORDS = {row.code for row in ROWS if row.expected is RecordRefusedError} | {
    E.RECORD_LIST_TOO_LARGE,
    E.UNKNOWN_TOPIC_OR_PART,
    E.INVALID_TIMESTAMP,
    E.INVALID_RECORD,
    E._STATE,
}


@given(calls, codes)
@CASES
def test_error_without_a_flag_is_never_gone_on_from(call: Call, code: int) -> None:
    """rdkafka.h: what is neither retriable nor abortable is fatal. A refused record is known, and local."""
    found = classify(call, error(code))
    assert not isinstance(found, RetriableError)
    if (call is Call.PRODUCE and code in _REFUSED_RECORDS) or (
        call is Call.SEND_OFFSETS and code == E._STATE
    ):
        return
    assert not isinstance(found, AbortableError)


@given(calls, codes, flags, st.booleans())
@CASES
def test_class_never_depends_on_the_text(call: Call, code: int, flag: str, expired: bool) -> None:
    texts = ("", "fenced by newer instance", "timed out", "commit succeeded on the broker but failed locally")
    errors = [error(code, flag, text) for text in texts]
    assert len({type(classify(call, found, expired=expired)) for found in errors}) == 1
    assert len({type(classify_consumer(call, found)) for found in errors}) == 1
    assert len({type(classify_delivery(found, topic="out", expired=expired)) for found in errors}) == 1


@given(calls, codes, flags)
@CASES
def test_after_a_fence_every_answer_is_the_fence(call: Call, code: int, flag: str) -> None:
    """Measured: begin and abort of a fenced producer answer _CONFLICT, flagged retriable, for ever."""
    found = classify(call, error(code, flag), fatal=error(E._FENCED, "fatal"))
    assert type(found) is FencedError


@pytest.mark.parametrize("call", [Call.BEGIN, Call.ABORT])
def test_conflict_after_a_fence_is_the_fence_and_not_retried(call: Call) -> None:
    found = classify(call, error(E._CONFLICT, "retriable"), fatal=error(E._FENCED, "fatal"))
    assert type(found) is FencedError
    assert found.code == "_FENCED"


def test_fence_says_what_to_look_for() -> None:
    """Also a stranger: a Java producer with our transactional.id (tests/proof/java_zombie.py)."""
    found = classify(Call.PRODUCE, error(E._FENCED, "fatal"))
    assert "Fix, unless this instance was replaced: let no other one run with its ordinal" in str(found)
    assert "no other program with this transactional.id" in str(found)


def test_librdkafkas_guess_at_brokers_of_2016_is_not_passed_on() -> None:
    guess = (
        "Disconnected: requesting ApiVersion: might be caused by incorrect security.protocol configuration (connecting to a "
        "SSL listener?) or broker version is < 0.10 (see api.version.request) (after 3ms in state APIVERSION_QUERY)"
    )
    said = str(classify_consumer(Call.METADATA, KafkaError(KafkaError._TRANSPORT, guess)))
    assert "0.10" not in said
    assert "another kafka.security_protocol (after 3ms in state APIVERSION_QUERY)" in said


def test_state_error_after_a_fatal_one_is_not_the_callers_bug() -> None:
    assert type(classify(Call.COMMIT, error(E._STATE), fatal=error(E._FENCED, "fatal"))) is FencedError


@pytest.mark.parametrize("call", TRANSACTIONAL)
@pytest.mark.parametrize("flag", ["fatal", "abortable"])
def test_fence_of_a_transaction_that_outlived_its_timeout_proves_nothing(call: Call, flag: str) -> None:
    assert type(classify(call, error(E._FENCED, flag), expired=True)) is TransactionExpiredError


def test_remembered_fence_of_an_expired_transaction_proves_nothing_either() -> None:
    found = classify(
        Call.ABORT, error(E._CONFLICT, "retriable"), fatal=error(E._FENCED, "fatal"), expired=True
    )
    assert type(found) is TransactionExpiredError


def test_expiry_changes_the_meaning_of_fences_only() -> None:
    changed = {
        row
        for row in ROWS
        if type(classify(row.call, error(row.code, row.flag), expired=True)) is not row.expected
    }
    assert changed == {row for row in ROWS if row.expected is FencedError}


def test_abortable_comes_before_retriable() -> None:
    both = KafkaError(E._TIMED_OUT, "both", False, True, True)
    assert type(classify(Call.COMMIT, both)) is AbortableError


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        (E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "TransactionalId"),
        (E.INVALID_TRANSACTION_TIMEOUT, "transaction.timeout_ms"),
        (E.SASL_AUTHENTICATION_FAILED, "kafka.sasl_password"),
        (E._UNSUPPORTED_FEATURE, "2.5 or newer"),
    ],
)
def test_configuration_error_names_the_fix(code: int, fix: str) -> None:
    assert fix in str(classify(Call.INIT, error(code, "fatal")))


def test_broker_that_takes_no_such_offset_metadata_is_told_by_its_setting() -> None:
    found = classify(Call.SEND_OFFSETS, error(E.OFFSET_METADATA_TOO_LARGE, "abortable"))
    assert type(found) is ConfigError
    assert "offset.metadata.max.bytes" in str(found)


# --- delivery reports ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (E._PURGE_QUEUE, None),  # an abort threw the record away
        (E._PURGE_INFLIGHT, None),
        (E._FENCED, FencedError),
        (E.PRODUCER_FENCED, FencedError),
        (E.INVALID_PRODUCER_EPOCH, FencedError),
        (E.MSG_SIZE_TOO_LARGE, RecordRefusedError),
        (E.RECORD_LIST_TOO_LARGE, RecordRefusedError),
        (E.INVALID_RECORD, RecordRefusedError),
        (E.INVALID_TIMESTAMP, RecordRefusedError),
        (E._UNKNOWN_TOPIC, RecordRefusedError),
        (E._UNKNOWN_PARTITION, RecordRefusedError),
        (E.UNKNOWN_TOPIC_OR_PART, RecordRefusedError),
        (E.TOPIC_AUTHORIZATION_FAILED, ConfigError),
        (E._MSG_TIMED_OUT, AbortableError),
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, AbortableError),
        (UNKNOWN, AbortableError),
    ],
)
def test_delivery_row(code: int, expected: type[EosError] | None) -> None:
    found = classify_delivery(error(code), topic="out")
    assert (None if found is None else type(found)) is expected
    if found is not None and expected is not FencedError:
        assert "out" in str(found)


def test_fence_in_a_delivery_report_of_an_expired_transaction_proves_nothing() -> None:
    found = classify_delivery(error(E.INVALID_PRODUCER_EPOCH), topic="out", expired=True)
    assert type(found) is TransactionExpiredError


# --- the consumer's calls ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "flag", "code", "expected"),
    [
        # Measured: another id's transaction is pending on the offsets. No flag, and yet it ends by itself.
        (Call.COMMITTED, "", E._TIMED_OUT, RetriableError),
        (Call.COMMITTED, "", E.UNSTABLE_OFFSET_COMMIT, RetriableError),
        (Call.COMMITTED, "", E.GROUP_AUTHORIZATION_FAILED, ConfigError),
        (Call.COMMITTED, "", E.NOT_COORDINATOR, RetriableError),
        (Call.CONSUME, "", E._AUTO_OFFSET_RESET, OffsetGapError),
        (Call.CONSUME, "", E.OFFSET_OUT_OF_RANGE, OffsetGapError),
        (Call.CONSUME, "", E._LOG_TRUNCATION, OffsetGapError),
        (Call.CONSUME, "", E.TOPIC_AUTHORIZATION_FAILED, ConfigError),
        (Call.CONSUME, "", E.SASL_AUTHENTICATION_FAILED, ConfigError),
        (Call.CONSUME, "", E._UNKNOWN_GROUP, ConfigError),
        (Call.CONSUME, "fatal", E.FENCED_INSTANCE_ID, FencedError),
        (Call.CONSUME, "", E.FENCED_INSTANCE_ID, FencedError),
        (Call.CONSUME, "", E.ILLEGAL_GENERATION, RebalancedError),
        (Call.CONSUME, "", E.UNKNOWN_MEMBER_ID, RebalancedError),
        (Call.CONSUME, "", E.REBALANCE_IN_PROGRESS, RebalancedError),
        (Call.CONSUME, "", E.FENCED_MEMBER_EPOCH, RebalancedError),
        (Call.CONSUME, "", E._STATE, UsageError),
        (Call.CONSUME, "fatal", UNKNOWN, UnclassifiedError),
        (Call.CONSUME, "", E._ALL_BROKERS_DOWN, RetriableError),
        (Call.CONSUME, "", E._TRANSPORT, RetriableError),
        (Call.CONSUME, "", UNKNOWN, RetriableError),
        (Call.METADATA, "", E._TRANSPORT, RetriableError),
        (Call.METADATA, "", E.UNKNOWN_TOPIC_OR_PART, RetriableError),
    ],
)
def test_consumer_row(call: Call, flag: str, code: int, expected: type[EosError]) -> None:
    found = classify_consumer(call, error(code, flag))
    assert type(found) is expected
    assert found.code == error(code).name()


def test_a_topic_that_may_not_be_read_names_the_grants_of_verify_too() -> None:
    found = str(classify_consumer(Call.CONSUME, error(E.TOPIC_AUTHORIZATION_FAILED)))
    assert "Write on output topics. `eos verify` reads both: `--for verify`" in found


def test_gap_in_the_input_says_how_a_person_decides() -> None:
    assert "eos offsets set MODULE:NAME --to" in str(
        classify_consumer(Call.CONSUME, error(E._AUTO_OFFSET_RESET))
    )


@pytest.mark.parametrize(
    ("code", "text", "fix"),
    [
        (E._AUTHENTICATION, "invalid credentials", "kafka.sasl_password"),
        (E._SSL, "certificate verify failed", "kafka.ssl_ca_file"),
        (
            E._TRANSPORT,
            "ssl/tls alert certificate unknown: SSL alert number 46",
            "kafka.ssl_certificate_file",
        ),
        (E._TRANSPORT, "tlsv1.3 alert certificate required: SSL alert number 116", "kafka.ssl_key_file"),
    ],
)
def test_an_event_of_a_refused_connection_says_the_fix(code: int, text: str, fix: str) -> None:
    found = refused_connection(Call.METADATA, KafkaError(code, text))
    assert isinstance(found, ConfigError)
    assert fix in str(found)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (E._TRANSPORT, "Disconnected"),
        (E._TRANSPORT, "SSL alert number 80"),  # internal_error: of the broker, and not about a certificate
        (E._ALL_BROKERS_DOWN, "1/1 brokers are down"),
        (E._TIMED_OUT, "SSL alert number 46"),
    ],
)
def test_an_event_of_a_connection_that_broke_is_no_refusal(code: int, text: str) -> None:
    assert refused_connection(Call.METADATA, KafkaError(code, text)) is None

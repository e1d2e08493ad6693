"""Accidents inside a transaction: what librdkafka hides, what is redone, what is resumed, what ends the producer."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError

from eos.core.block import Transaction
from eos.core.ledger import Outcome
from eos.core.producer import ProducerState
from eos.core.transaction import TransactionState
from eos.errors import (
    AbortableError,
    AbortTransaction,
    CommitOutcomeUnknownError,
    ConfigError,
    EosError,
    FencedError,
    RebalancedError,
    RecordRefusedError,
    ReopenError,
    TransactionExpiredError,
)
from eos.events import CallRetried, Fenced, ProducerSuspect, TransactionCommitted, TransactionEnded
from eos.testing.proxy.frames import ApiKey
from tests.mock_cluster.conftest import NewShard
from tests.support.mock_cluster import MockCluster
from tests.support.mock_shard import TIMEOUT_MS, MockShard
from tests.support.patience import PATIENCE_S

E = KafkaError
INIT, ADD_PARTITIONS, PRODUCE = ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.PRODUCE
ADD_OFFSETS, OFFSET_COMMIT, END = ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN
ONLY = 1  # broker id of the single one
LEADER, COORDINATOR, OTHER = 1, 2, 3  # and of three
DEADLINE_MS = 5_000  # of a commit without an answer; its records and offsets must be sent in that time
PROMPT_S = TIMEOUT_MS / 1000 / 2  # what waited for no time-out


# --- a broker's error while sending ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "code"),
    [
        (ADD_PARTITIONS, E.TRANSACTION_ABORTABLE),
        (PRODUCE, E.TRANSACTION_ABORTABLE),
        (ADD_OFFSETS, E.TRANSACTION_ABORTABLE),
        (OFFSET_COMMIT, E.TRANSACTION_ABORTABLE),
        (END, E.TRANSACTION_ABORTABLE),
        (ADD_PARTITIONS, E.UNKNOWN_PRODUCER_ID),
        (PRODUCE, E.UNKNOWN_PRODUCER_ID),
        (END, E.UNKNOWN_PRODUCER_ID),
    ],
)
def test_abortable_error_is_redone_in_a_new_transaction(api: ApiKey, code: int, shard: MockShard) -> None:
    shard.cluster.push_errors(api, code)
    with pytest.raises(AbortableError):
        shard.run(offset=5)
    assert len(shard.told_of(TransactionEnded)) == 1
    assert shard.run().state is TransactionState.COMMITTED


def test_record_that_the_broker_refuses_is_told_as_such(shard: MockShard) -> None:
    shard.cluster.push_errors(PRODUCE, E.MSG_SIZE_TOO_LARGE)
    with pytest.raises(RecordRefusedError, match=r"out: .*message\.max\.bytes"):
        shard.run(offset=5)
    assert shard.run().state is TransactionState.COMMITTED


@pytest.mark.parametrize(
    ("api", "code", "expected", "says"),
    [
        (PRODUCE, E.TOPIC_AUTHORIZATION_FAILED, ConfigError, "is not allowed to Write on Topic 'out'"),
        (ADD_PARTITIONS, E.TOPIC_AUTHORIZATION_FAILED, ConfigError, "is not allowed to Write on Topic 'out'"),
        (ADD_PARTITIONS, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ConfigError, "Write on TransactionalId"),
        (PRODUCE, E.MSG_SIZE_TOO_LARGE, RecordRefusedError, r"message\.max\.bytes"),
        (ADD_PARTITIONS, E.TRANSACTION_ABORTABLE, AbortableError, "TRANSACTION_ABORTABLE"),
    ],
)
def test_record_behind_one_that_has_failed_in_the_background_says_what_it_has_failed_of(
    api: ApiKey, code: int, expected: type[EosError], says: str, shard: MockShard
) -> None:
    """librdkafka refuses it with _STATE, for which a new transaction was tried again and again."""
    shard.cluster.push_errors(api, code)
    with pytest.raises(expected, match=says), shard.producer.transaction() as transaction:
        transaction.produce("out", b"v")
        _produce_for_ever(transaction)


def test_broker_that_refuses_the_offset_metadata_is_told_as_such(shard: MockShard) -> None:
    shard.cluster.push_errors(OFFSET_COMMIT, E.OFFSET_METADATA_TOO_LARGE)
    with pytest.raises(ConfigError, match=r"offset\.metadata\.max\.bytes"):
        shard.run(offset=5)


def test_leader_that_moved_is_followed_without_an_abort(
    three_brokers: MockCluster, new_shard: NewShard
) -> None:
    three_brokers.partition_set_leader("out", 0, LEADER)
    shard = new_shard(on=three_brokers)
    shard.run()
    three_brokers.clear_requests()
    three_brokers.push_error_rtts(LEADER, PRODUCE, (E.NOT_LEADER_FOR_PARTITION, 0))
    three_brokers.partition_set_leader("out", 0, OTHER)
    assert shard.run().state is TransactionState.COMMITTED
    assert three_brokers.requests(PRODUCE)[-1].broker_id == OTHER
    assert len(three_brokers.requests(END)) == 1
    assert not shard.told_of(TransactionEnded)


@pytest.mark.parametrize("code", [E.REQUEST_TIMED_OUT, E.NOT_ENOUGH_REPLICAS, E.LEADER_NOT_AVAILABLE])
def test_passing_error_of_the_leader_is_retried_by_the_client(code: int, shard: MockShard) -> None:
    shard.cluster.push_errors(PRODUCE, code, code)
    assert shard.run().state is TransactionState.COMMITTED
    assert len(shard.cluster.requests(PRODUCE)) == 3


def test_leader_that_stays_away_fails_the_transaction_within_its_timeout(
    three_brokers: MockCluster, new_shard: NewShard
) -> None:
    shard = new_shard(on=three_brokers, timeout_ms=6_000)
    three_brokers.coordinator_set("transaction", shard.producer.transactional_id, COORDINATOR)
    three_brokers.partition_set_leader("out", 0, LEADER)
    shard.run()
    three_brokers.broker_down(LEADER)
    began = time.monotonic()
    with pytest.raises((AbortableError, ReopenError)):
        shard.run()
    assert time.monotonic() - began < PATIENCE_S  # of 300 s that librdkafka gives a record
    three_brokers.broker_up(LEADER)
    assert not shard.told_of(Fenced)


def test_record_that_fails_while_the_offsets_are_sent_aborts_the_transaction(
    slow_cluster: MockCluster, new_shard: NewShard
) -> None:
    """Between its two requests send_offsets finds the transaction failed, and answers _STATE."""
    shard = new_shard(on=slow_cluster)
    shard.cluster.push_error_rtts(ONLY, PRODUCE, (E.MSG_SIZE_TOO_LARGE, 150))
    shard.cluster.push_error_rtts(ONLY, ADD_OFFSETS, (0, 500))
    with pytest.raises(RecordRefusedError):
        shard.run(offset=5)
    assert shard.run().state is TransactionState.COMMITTED


# --- the commit --------------------------------------------------------------------------------------


def test_slow_commit_is_resumed_and_committed_once(slow_cluster: MockCluster, new_shard: NewShard) -> None:
    shard = new_shard(on=slow_cluster)
    shard.cluster.push_error_rtts(ONLY, END, (0, 3000))
    assert shard.run(offset=5).state is TransactionState.COMMITTED
    assert len(shard.cluster.requests(END)) == 1
    resumed = [retried.call for retried in shard.told_of(CallRetried)]
    assert len(resumed) >= 2  # 3 s in slices of one; how many exactly is the machine's
    assert set(resumed) == {"commit"}
    assert len(shard.told_of(TransactionCommitted)) == 1


@pytest.mark.parametrize(
    "code", [E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE, E.CONCURRENT_TRANSACTIONS]
)
def test_coordinator_that_is_busy_is_asked_again(code: int, shard: MockShard) -> None:
    shard.cluster.push_errors(END, code)
    assert shard.run(offset=5).state is TransactionState.COMMITTED
    assert len(shard.cluster.requests(END)) == 2


def test_coordinator_that_moved_is_followed(three_brokers: MockCluster, new_shard: NewShard) -> None:
    shard = new_shard(on=three_brokers)
    three_brokers.coordinator_set("transaction", shard.producer.transactional_id, COORDINATOR)
    shard.producer.open()
    three_brokers.push_error_rtts(COORDINATOR, END, (E.NOT_COORDINATOR, 0))
    three_brokers.coordinator_set("transaction", shard.producer.transactional_id, OTHER)
    assert shard.run().state is TransactionState.COMMITTED
    assert three_brokers.requests(END)[-1].broker_id == OTHER
    assert not shard.told_of(TransactionEnded)


def test_coordinator_that_fails_over_finishes_the_commit(
    three_brokers: MockCluster, new_shard: NewShard
) -> None:
    shard = new_shard(on=three_brokers)
    three_brokers.coordinator_set("transaction", shard.producer.transactional_id, COORDINATOR)
    shard.producer.open()
    three_brokers.push_error_rtts(COORDINATOR, END, (E._TRANSPORT, 0))
    three_brokers.broker_down(COORDINATOR)
    back = threading.Timer(1.2, three_brokers.broker_up, [COORDINATOR])
    back.start()
    try:
        assert shard.run().state is TransactionState.COMMITTED
    finally:
        back.join()
    assert not shard.told_of(TransactionEnded)


def test_resent_commit_makes_the_producer_suspect_and_the_next_begin_has_an_epoch_of_its_own(
    shard: MockShard,
) -> None:
    """The first copy may still be on its way, and would end the next transaction of the same epoch."""
    shard.cluster.push_errors(END, E._TRANSPORT)
    assert shard.run(offset=5).state is TransactionState.COMMITTED
    assert len(shard.cluster.requests(END)) == 2
    assert shard.producer.state is ProducerState.SUSPECT
    assert len(shard.told_of(ProducerSuspect)) == 1
    shard.store(5)
    shard.cluster.clear_requests()
    assert shard.run().state is TransactionState.COMMITTED
    assert len(shard.cluster.requests(INIT)) == 1


@pytest.mark.parametrize("code", [E.UNKNOWN, E.REQUEST_TIMED_OUT])
def test_commit_answered_with_an_error_that_tells_nothing_makes_the_producer_suspect(
    code: int, shard: MockShard
) -> None:
    """The client presents it as abortable, although nobody knows what the coordinator will still do."""
    shard.cluster.push_errors(END, code)
    with pytest.raises(AbortableError):
        shard.run()
    assert shard.producer.state is ProducerState.SUSPECT


def test_unanswered_commit_is_never_followed_by_an_abort(
    slow_cluster: MockCluster, new_shard: NewShard
) -> None:
    shard = new_shard(on=slow_cluster, commit_deadline_ms=DEADLINE_MS)
    shard.producer.open()
    shard.cluster.clear_requests()
    shard.cluster.push_error_rtts(ONLY, END, (0, 3 * DEADLINE_MS))
    began = time.monotonic()
    with pytest.raises(CommitOutcomeUnknownError, match="together or not at all"):
        shard.run(offset=5)
    assert time.monotonic() - began >= DEADLINE_MS / 1000
    assert len(shard.cluster.requests(END)) == 1
    assert shard.producer.state is ProducerState.OVER


@pytest.mark.parametrize("happened", [True, False])
def test_unanswered_commit_is_resolved_by_the_offsets_that_are_stored(
    happened: bool, slow_cluster: MockCluster, new_shard: NewShard
) -> None:
    shard = new_shard(on=slow_cluster, commit_deadline_ms=DEADLINE_MS)
    shard.cluster.push_error_rtts(ONLY, END, (0, 3 * DEADLINE_MS))
    with pytest.raises(CommitOutcomeUnknownError):
        shard.run(offset=5)
    if happened:
        shard.store(5)
    assert shard.producer.reopen() is (Outcome.COMMITTED if happened else Outcome.ABORTED)
    assert shard.run().state is TransactionState.COMMITTED


def test_unanswered_commit_with_a_strangers_offsets_is_a_fence(
    slow_cluster: MockCluster, new_shard: NewShard
) -> None:
    shard = new_shard(on=slow_cluster, commit_deadline_ms=DEADLINE_MS)
    shard.cluster.push_error_rtts(ONLY, END, (0, 3 * DEADLINE_MS))
    with pytest.raises(CommitOutcomeUnknownError):
        shard.run(offset=5)
    ours = shard.producer.ledger_of(shard.group).metadata
    shard.store(5, by=str(replace(ours, owner="rival")))
    inits = len(shard.cluster.requests(INIT))
    with pytest.raises(FencedError):
        shard.producer.reopen()
    assert len(shard.cluster.requests(INIT)) == inits  # the rightful owner was not fenced


# --- fences ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "code"),
    [
        (ADD_PARTITIONS, E.INVALID_PRODUCER_EPOCH),
        (ADD_PARTITIONS, E.PRODUCER_FENCED),
        (PRODUCE, E.INVALID_PRODUCER_EPOCH),
        (ADD_OFFSETS, E.INVALID_PRODUCER_EPOCH),
        (ADD_OFFSETS, E.PRODUCER_FENCED),  # flagged abortable, because librdkafka does not list it there
        (OFFSET_COMMIT, E.INVALID_PRODUCER_EPOCH),
        (OFFSET_COMMIT, E.PRODUCER_FENCED),  # likewise
        (END, E.INVALID_PRODUCER_EPOCH),
        (END, E.PRODUCER_FENCED),
    ],
)
def test_fence_is_raised_at_once_and_at_every_later_use(api: ApiKey, code: int, shard: MockShard) -> None:
    shard.cluster.push_errors(api, code)
    began = time.monotonic()
    with pytest.raises(FencedError):
        shard.run(offset=5)
    assert shard.producer.state is ProducerState.FENCED
    assert len(shard.told_of(Fenced)) == 1
    shard.cluster.clear_requests()
    for _ in range(3):
        with pytest.raises(FencedError):
            shard.producer.transaction()
        with pytest.raises(FencedError):
            shard.producer.reopen()
    shard.producer.close()
    assert time.monotonic() - began < PROMPT_S
    assert not shard.cluster.requests(INIT)


def test_fence_after_the_machine_was_suspended_inside_the_transaction_is_an_expiry(
    shard: MockShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a machine is suspended, CLOCK_MONOTONIC stands still, and the coordinator's time goes on."""
    asleep_s, clock_gettime = 0.0, time.clock_gettime
    monkeypatch.setattr(
        time,
        "clock_gettime",
        lambda clock: clock_gettime(clock) + (asleep_s if clock == time.CLOCK_BOOTTIME else 0.0),
    )
    shard.cluster.push_errors(END, E.INVALID_PRODUCER_EPOCH)
    with pytest.raises(TransactionExpiredError), shard.producer.transaction() as transaction:
        transaction.produce("out", b"v")
        asleep_s = 3600.0


def test_fence_is_seen_by_the_block_that_still_produces(shard: MockShard) -> None:
    shard.cluster.push_errors(ADD_PARTITIONS, E.PRODUCER_FENCED)
    with shard.producer.transaction() as transaction:
        transaction.produce("out", b"v")
        _until_sent(shard, ADD_PARTITIONS)
        with pytest.raises(FencedError):
            _produce_for_ever(transaction)
        raise AbortTransaction
    assert shard.producer.state is ProducerState.FENCED


def _produce_for_ever(transaction: Transaction) -> None:
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        transaction.produce("out", b"v")
        time.sleep(0.01)


def _fail_inside(transaction: Transaction, shard: MockShard, error: Exception) -> None:
    with transaction:
        transaction.produce("out", b"v")
        _until_sent(shard)
        raise error


def _until_sent(shard: MockShard, api: ApiKey = PRODUCE) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not shard.cluster.requests(api) and time.monotonic() < ends:
        time.sleep(0.01)
    time.sleep(0.05)  # and answered


# --- the group moved on ------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [E.ILLEGAL_GENERATION, E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID])
@pytest.mark.parametrize("api", [ADD_OFFSETS, OFFSET_COMMIT])
def test_offsets_for_a_group_that_moved_on_abort_the_transaction(
    api: ApiKey, code: int, shard: MockShard
) -> None:
    shard.cluster.push_errors(api, code)
    with pytest.raises(RebalancedError):
        shard.run(offset=5)
    assert len(shard.cluster.requests(api)) == 1
    assert shard.producer.state is not ProducerState.FENCED
    assert shard.run().state is TransactionState.COMMITTED


def test_offsets_without_an_answer_are_sent_once_and_aborted(
    slow_cluster: MockCluster, new_shard: NewShard
) -> None:
    shard = new_shard(on=slow_cluster, timeout_ms=6_000)
    shard.producer.open()
    shard.cluster.clear_requests()
    shard.cluster.push_error_rtts(ONLY, OFFSET_COMMIT, (0, 20_000))
    with pytest.raises((AbortableError, ReopenError)):
        shard.run(offset=5)
    assert len(shard.cluster.requests(OFFSET_COMMIT)) == 1
    assert not shard.told_of(TransactionCommitted)


# --- expiry of the transactional.id after idle days ----------------------------------------------------


@pytest.mark.parametrize("api", [ADD_PARTITIONS, PRODUCE, ADD_OFFSETS, OFFSET_COMMIT, END])
def test_id_that_expired_while_idle_is_opened_again(api: ApiKey, shard: MockShard) -> None:
    shard.run()
    shard.take_over()
    shard.cluster.push_errors(api, E.INVALID_PRODUCER_ID_MAPPING)
    with pytest.raises((AbortableError, ReopenError)):
        shard.run(offset=5)
    assert shard.run().state is TransactionState.COMMITTED
    assert not shard.told_of(Fenced)


def test_id_that_expired_and_is_known_again_under_another_producer_is_fenced(shard: MockShard) -> None:
    """By the init of the reopen: 90 means that somebody has initialised the id since."""
    shard.run()
    shard.take_over()
    shard.cluster.clear_requests()
    shard.cluster.push_errors(ADD_PARTITIONS, E.INVALID_PRODUCER_ID_MAPPING)
    shard.cluster.push_errors(INIT, E.PRODUCER_FENCED)
    with pytest.raises(ReopenError, match="has forgotten this transactional"):
        shard.run(offset=5)
    assert shard.cluster.requests(INIT) == shard.cluster.requests(END) == []
    with pytest.raises(FencedError):
        shard.run()
    assert len(shard.told_of(Fenced)) == 1


def test_producer_that_the_abort_cannot_save_is_over_and_the_callers_error_goes_on(shard: MockShard) -> None:
    """An abort that raced the first AddPartitions is answered INVALID_TXN_STATE, which is fatal to the instance."""
    shard.cluster.push_errors(END, E.INVALID_TXN_STATE)
    error = ZeroDivisionError()
    transaction = shard.producer.transaction()
    with pytest.raises(ZeroDivisionError) as raised:
        _fail_inside(transaction, shard, error)
    assert raised.value is error
    assert any("INVALID_TXN_STATE" in note for note in error.__notes__)
    assert transaction.state is TransactionState.UNRESOLVED
    assert shard.producer.state is ProducerState.OVER


# --- access ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "code"),
    [
        (ADD_PARTITIONS, E.TOPIC_AUTHORIZATION_FAILED),
        (ADD_PARTITIONS, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (ADD_PARTITIONS, E.CLUSTER_AUTHORIZATION_FAILED),
        (PRODUCE, E.TOPIC_AUTHORIZATION_FAILED),
        (ADD_OFFSETS, E.GROUP_AUTHORIZATION_FAILED),
        (ADD_OFFSETS, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (OFFSET_COMMIT, E.GROUP_AUTHORIZATION_FAILED),
        (OFFSET_COMMIT, E.TOPIC_AUTHORIZATION_FAILED),
        (END, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
)
def test_refused_access_is_a_matter_of_configuration_and_no_storm(
    api: ApiKey, code: int, shard: MockShard
) -> None:
    shard.cluster.push_errors(api, *[code] * 20)
    with pytest.raises(ConfigError, match="Fix: grant"):
        shard.run(offset=5)
    assert len(shard.cluster.requests(api)) <= 2  # EndTxn: the commit, and the abort after it


def test_every_error_of_a_block_is_one_of_ours(shard: MockShard) -> None:
    """A raw error of the client would pass every handler of the loop, fences included."""
    shard.cluster.push_errors(END, E.INVALID_PRODUCER_EPOCH)
    with pytest.raises(Exception) as raised:  # noqa: PT011 - the class is what is looked at
        shard.run()
    assert isinstance(raised.value, EosError), repr(raised.value)

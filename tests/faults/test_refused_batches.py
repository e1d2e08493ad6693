"""A leader refuses a batch, and takes the next one of the same partition, which was under way already.

A broker that has made a partition known before it leads it does so: one of a new topic, or one that has just been elected. It
takes any sequence number from a producer that it knows nothing of, so the batch behind the refused one is written. librdkafka
concludes that the refused one was written too, and never sends it again: see eos.kafka.implicit_acks. The transaction must not
be committed then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from eos import (
    AbortableError,
    InputBatch,
    Job,
    OutputBatch,
    OutputRecord,
    RecordRefusedError,
    Transaction,
    TransactionalProducer,
)
from eos.errors import CommitOutcomeUnknownError, ReopenError
from eos.events import Event, TransactionCommitted, TransactionEnded
from eos.kafka.implicit_acks import IMPLICIT_ACK
from eos.kafka.late_copies import ResendWatch
from eos.kafka.topics import produce_plain
from eos.runner.worker import run
from eos.testing.proxy import ApiKey, HoldProxy
from tests.support.observer import committed_offsets, create_topics, load, read_committed, unique
from tests.support.patience import PATIENCE_S
from tests.support.refused import NOT_LEADER_OR_FOLLOWER, refuse_first_batch
from tests.support.settings import settings_of

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker

UNKNOWN_TOPIC_OR_PARTITION = 3
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
PROMPT_S = 30.0  # a transaction lives for 60
STATISTICS_S = 0.7  # they come twice a second
# librdkafka sends no second request for a partition while five records or more of it are under way (2.16).
FIRST = [b"0", b"1", b"2", b"3"]
VALUES = [*FIRST, b"4", b"5", b"6"]


class Alarm(Exception):  # noqa: N818 - of a signal handler
    pass


def test_producer_that_failed_while_its_records_were_written_says_that_they_are_not_committed(
    proxy: HoldProxy, bootstrap: str, topic: NewTopic
) -> None:
    """It spoke of a commit that may have happened, though none was sent. No offset would have shown it to be untrue."""
    out = topic("out")
    settings = settings_of(proxy.bootstrap_servers, transaction__timeout_ms=10_000)
    with TransactionalProducer(settings, app=unique("app")) as producer:
        with producer.transaction() as txn:
            txn.produce(out, b"before")
        proxy.refuse(ApiKey.PRODUCE, OUT_OF_ORDER_SEQUENCE_NUMBER)
        with pytest.raises(ReopenError) as caught, producer.transaction() as txn:
            txn.produce(out, b"never")
        assert not isinstance(caught.value, CommitOutcomeUnknownError), caught.value
    assert [record.value for record in read_committed(bootstrap, out)] == [b"before"]


def write(txn: Transaction, out: str, first_has_come: threading.Event) -> None:
    txn.produce_batch(out, OutputBatch(out, FIRST))
    assert first_has_come.wait(PATIENCE_S)
    txn.produce_batch(out, OutputBatch(out, VALUES[len(FIRST) :]))


def written(bootstrap: str, out: str) -> list[bytes | None]:
    return [record.value for record in read_committed(bootstrap, out)]


@pytest.fixture
def out(topic: NewTopic) -> str:
    return topic("out")


@pytest.mark.parametrize("error", [NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION])
def test_refused_batch_that_librdkafka_takes_for_written_aborts_the_transaction(
    proxy: HoldProxy, bootstrap: str, out: str, error: int
) -> None:
    with TransactionalProducer(settings_of(proxy.bootstrap_servers), app=unique("refused")) as producer:
        first_has_come = refuse_first_batch(proxy, error)
        with pytest.raises(AbortableError, match=rf"{out} \[0\] 4 message"), producer.transaction() as txn:
            write(txn, out, first_has_come)
        with producer.transaction() as txn:
            write(txn, out, first_has_come)
    assert written(bootstrap, out) == VALUES


def test_job_whose_batch_is_refused_writes_it_all_the_same(
    proxy: HoldProxy, bootstrap: str, topic: NewTopic, out: str
) -> None:
    source, name = topic("in"), unique("refused")
    load(bootstrap, source, 1000)
    first_has_come = refuse_first_batch(proxy)

    def copy(batch: InputBatch) -> list[OutputBatch]:
        if batch.offsets[0]:  # the loop's first batch has four records
            assert first_has_come.wait(PATIENCE_S)
        return [OutputBatch(out, batch.values)]

    job = Job(name=name, inputs=[source], outputs=[out], transform_batch=copy)
    settings = settings_of(
        proxy.bootstrap_servers, group=name, input__start="earliest", transaction__interval_ms=10_000
    )
    told: list[Event] = []
    run(job, settings, until_caught_up=True, listener=told.append)
    assert written(bootstrap, out) == [b"%d" % number for number in range(1000)]
    assert committed_offsets(bootstrap, name, [(source, 0)])[source, 0][0] == 1000
    ends = [event for event in told if isinstance(event, (TransactionEnded, TransactionCommitted))]
    assert any(isinstance(end, TransactionEnded) and end.outcome == "aborted" for end in ends)


def test_records_that_are_fed_are_all_there_though_a_batch_was_refused(
    proxy: HoldProxy, bootstrap: str, out: str
) -> None:
    first_has_come = refuse_first_batch(proxy)

    def records() -> Iterator[OutputRecord]:
        yield from (OutputRecord(out, value) for value in FIRST)
        assert first_has_come.wait(PATIENCE_S)
        yield from (OutputRecord(out, value) for value in VALUES[len(FIRST) :])

    assert produce_plain({"bootstrap.servers": proxy.bootstrap_servers}, records()) == len(VALUES)
    assert written(bootstrap, out) == VALUES


def test_record_that_is_too_large_fails_a_transaction_at_once_though_another_batch_was_under_way(
    bootstrap: str,
) -> None:
    """librdkafka takes that batch back, and does not send it again; a flush would wait for it."""
    out = unique("out")
    create_topics(bootstrap, {out: 1}, config={"max.message.bytes": "100000"})
    settings = settings_of(bootstrap, kafka__producer={"message.max.bytes": 5_000_000, "linger.ms": 0})
    for _ in range(5):
        with TransactionalProducer(settings, app=unique("refused")) as producer:
            with producer.transaction() as txn:
                txn.produce(out, b"before")
            began = time.monotonic()
            with pytest.raises(RecordRefusedError), producer.transaction() as txn:
                txn.produce(out, bytes(2_000_000))
                txn.produce(out, b"behind it")
            assert time.monotonic() - began < PROMPT_S
    assert written(bootstrap, out) == [b"before"] * 5


def test_epoch_that_librdkafka_raises_in_an_abort_is_no_rival(
    proxy: HoldProxy, bootstrap: str, out: str
) -> None:
    with TransactionalProducer(settings_of(proxy.bootstrap_servers), app=unique("refused")) as producer:
        with producer.transaction() as txn:
            txn.produce(out, b"before")
        time.sleep(STATISTICS_S)
        first_has_come = refuse_first_batch(proxy)
        with pytest.raises(AbortableError), producer.transaction() as txn:
            write(txn, out, first_has_come)
        with producer.transaction() as txn:
            write(txn, out, first_has_come)
    assert written(bootstrap, out) == [b"before", *VALUES]


def test_line_that_the_exception_of_a_signal_handler_drops_aborts_the_transaction(
    proxy: HoldProxy, bootstrap: str, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal that comes while the flush waits is handled inside the next line, which is gone then (33 of 150 timers)."""
    log = ResendWatch.log

    def interrupted(watch: ResendWatch, level: int, template: str, *args: object) -> None:
        if args[0] == IMPLICIT_ACK:
            raise Alarm
        log(watch, level, template, *args)

    with TransactionalProducer(settings_of(proxy.bootstrap_servers), app=unique("refused")) as producer:
        first_has_come = refuse_first_batch(proxy)
        monkeypatch.setattr(ResendWatch, "log", interrupted)
        with pytest.raises(Alarm), producer.transaction() as txn:
            write(txn, out, first_has_come)
        assert not txn.committed
        monkeypatch.undo()
        with producer.transaction() as txn:
            write(txn, out, first_has_come)
    assert written(bootstrap, out) == VALUES

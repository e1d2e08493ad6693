"""An output topic is deleted, and created anew, inside a transaction: the rest of it does not become visible."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from eos import AbortableError, ConfigError, Partition, Session, TransactionalProducer
from eos.base.deadline import Deadline
from eos.errors import ReopenError
from eos.events import PartitionsAssigned, TransactionEnded
from eos.exits import exit_code_of
from eos.testing.proxy import ApiKey, HoldProxy
from tests.support.jobs_for_faults import fault_job, in_thread, settings_for
from tests.support.observer import (
    committed_offsets,
    create_topics,
    delete_topic,
    load,
    read_committed,
    read_uncommitted,
    recreate_topic,
    unique,
)
from tests.support.patience import PATIENCE_S
from tests.support.sessions import producer_of, wait_delivered

pytestmark = pytest.mark.broker

HALF = 100
NOT_WAITED_FOR_S = 60.0  # the end of a transaction's time
SOON_GIVEN_UP = {"topic.metadata.propagation.max.ms": 1_000, "topic.metadata.refresh.interval.ms": 1_000}


def test_block_whose_output_is_created_anew_is_aborted_and_made_again(bootstrap: str) -> None:
    source, out, group = unique("in"), unique("out"), unique("own")
    create_topics(bootstrap, {source: 1, out: 1})
    load(bootstrap, source, HALF, "v")
    told: list[object] = []
    settings = settings_for(bootstrap, group=group, input__fetch_records=HALF)
    with Session(settings, app="own", inputs=[source], outputs=[out], listener=told.append) as session:
        outcomes: list[bool] = []
        while session.committed_offsets.get(Partition(source, 0), 0) < HALF:
            batch = session.fetch(HALF, 1.0)
            with session.transaction(batch) as txn:
                for number, record in enumerate(batch):
                    if number == HALF // 2 and not outcomes:
                        wait_delivered(producer_of(session._owner)._client)
                        recreate_topic(bootstrap, out)
                    txn.produce(out, record.value)
            if batch:
                outcomes.append(txn.committed)
    assert not outcomes[0]
    assert outcomes[-1]
    assert any(
        f"{out}: the output topic was deleted and created anew" in one.reason
        for one in told
        if isinstance(one, TransactionEnded) and one.outcome == "aborted"
    )
    assert [record.value for record in read_committed(bootstrap, out)] == [b"v%d" % n for n in range(HALF)]
    assert committed_offsets(bootstrap, group, [(source, 0)])[source, 0][0] == HALF


@pytest.mark.parametrize("earlier", [False, True], ids=["first transaction", "a later one"])
def test_transaction_without_input_is_aborted_where_its_output_is_created_anew(
    bootstrap: str, earlier: bool
) -> None:
    out, other = unique("out"), unique("other")
    create_topics(bootstrap, {out: 1, other: 1})
    with TransactionalProducer(settings_for(bootstrap), app=unique("only")) as producer:
        if earlier:
            with producer.transaction() as txn:
                txn.produce(out, b"earlier")
        with (
            pytest.raises(
                AbortableError, match=rf"^{out}: the output topic was deleted and created anew.*Fix: "
            ),
            producer.transaction() as txn,
        ):
            txn.produce(out, b"never")
            txn.produce(other, b"never")
            wait_delivered(producer._producer._client)
            recreate_topic(bootstrap, out)
            txn.produce(out, b"never")
        with producer.transaction() as txn:
            txn.produce(out, b"again")
            txn.produce(other, b"again")
        assert txn.committed
    assert [record.value for record in read_committed(bootstrap, out, other)] == [b"again", b"again"]


def test_output_that_is_deleted_for_good_ends_the_transaction_and_says_so(bootstrap: str) -> None:
    out, other, app = unique("out"), unique("other"), unique("only")
    create_topics(bootstrap, {out: 1, other: 1})
    settings = settings_for(bootstrap, kafka__producer=SOON_GIVEN_UP)
    with TransactionalProducer(settings, app=app) as producer:
        with (
            pytest.raises(ConfigError, match=rf"an output topic was deleted.*{out} does not exist.*Fix: "),
            producer.transaction() as txn,
        ):
            txn.produce(other, b"never")
            txn.produce(out, b"never")
            wait_delivered(producer._producer._client)
            delete_topic(bootstrap, out)
            txn.produce(out, b"never")
        try:
            with producer.transaction() as txn:
                txn.produce(other, b"next")
        except ReopenError as error:
            # Now and then librdkafka never lets go of the last record, not for the abort either. The abort is not answered then, and
            # nothing shows whether there was another owner.
            assert "Failed to flush all outstanding messages" in str(error)  # noqa: PT017
            with TransactionalProducer(settings, app=app) as another, another.transaction() as txn:
                txn.produce(other, b"next")
    assert [record.value for record in read_committed(bootstrap, other)] == [b"next"]


@pytest.mark.parametrize("timeout_ms", [6_000, 60_000])
def test_job_whose_output_is_deleted_for_good_ends_and_names_it(bootstrap: str, timeout_ms: int) -> None:
    """librdkafka waits for a topic to appear, 30 s by its own default. Jobs ended later, with "are the brokers up?" where their transactions are shorter."""
    job = fault_job(bootstrap, partitions=1)
    settings = settings_for(bootstrap, transaction__timeout_ms=timeout_ms)
    with in_thread(job, settings) as running:
        job.load(bootstrap, 10, "v", [0])
        running.wait_for_commits(10)
        delete_topic(bootstrap, job.audit)
        job.load(bootstrap, 10, "w", [0])
        with pytest.raises(
            ConfigError, match=rf"an output topic was deleted.*{job.audit} does not exist.*Fix: "
        ) as ended:
            running.wait(NOT_WAITED_FOR_S / 2)
    assert exit_code_of(ended.value) == 2


def test_output_that_goes_before_its_first_record_is_named_where_a_transaction_is_shorter_than_librdkafkas_patience(
    bootstrap: str,
) -> None:
    """The job had not written to it yet. Ten transactions waited for their time, and it ended as unavailable (5), without its name."""
    job = fault_job(bootstrap, partitions=1)
    settings = settings_for(bootstrap, transaction__timeout_ms=6_000)
    with in_thread(job, settings) as running:
        running.told(PartitionsAssigned)
        delete_topic(bootstrap, job.audit)
        job.load(bootstrap, 10, "w", [0])
        with pytest.raises(ConfigError, match=rf"{job.audit} does not exist.*Fix: ") as ended:
            running.wait()
    assert exit_code_of(ended.value) == 2


@pytest.mark.parametrize("written", [True, False], ids=["behind its last record", "before it is written"])
def test_output_that_is_deleted_before_the_commit_ends_the_transaction_and_the_next_one_is_written(
    bootstrap: str, written: bool
) -> None:
    """Where it was not written yet, its time had to be up before the deletion was named, or it never was."""
    out, other = unique("out"), unique("other")
    create_topics(bootstrap, {out: 1, other: 1})
    options = {} if written else {"linger.ms": int(NOT_WAITED_FOR_S * 500)}  # sent by the flush alone
    settings = settings_for(
        bootstrap, transaction__timeout_ms=int(NOT_WAITED_FOR_S * 1000), kafka__producer=options
    )
    app = unique("only")
    with TransactionalProducer(settings, app=app) as producer:
        with (
            pytest.raises(
                ConfigError, match=rf"an output topic was deleted.*{out} does not exist.*Fix: "
            ) as ended,
            producer.transaction() as txn,
        ):
            txn.produce(other, b"never")
            txn.produce(out, b"never")
            if written:
                wait_delivered(producer._producer._client)
            delete_topic(bootstrap, out)
        assert (
            ended.value.__cause__ is None
        )  # no error of librdkafka, which gives up later, had to be explained
    with TransactionalProducer(settings, app=app) as producer, producer.transaction() as txn:
        txn.produce(other, b"next")
    assert [record.value for record in read_committed(bootstrap, other)] == [b"next"]


def test_job_whose_output_is_created_anew_goes_on_with_the_torn_transaction_made_again(
    bootstrap: str,
) -> None:
    """What the job had committed to the deleted topic is gone; each record of the new topic's transactions is there."""
    job = fault_job(bootstrap, partitions=1)
    (source,) = job.inputs
    load(bootstrap, source, HALF, "former")
    settings = settings_for(
        bootstrap, transaction__interval_ms=10_000, input__fetch_records=10, kafka__producer=SOON_GIVEN_UP
    )
    with in_thread(job, settings) as run:
        run.wait_for_commits(HALF)
        out = job.out
        load(bootstrap, source, HALF, "first")
        # A transaction is open, with records of it in the log.
        assert Deadline(PATIENCE_S).wait_for(
            lambda: any(b"first" in (record.value or b"") for record in read_uncommitted(bootstrap, out))
        )
        recreate_topic(bootstrap, out)
        load(bootstrap, source, HALF, "second")
        run.wait_for_commits(3 * HALF)
        run.stop()
        assert any(
            f"{out}: the output topic was deleted" in one.reason
            for one in run.told(TransactionEnded, count=1)
        )
    values = [record.value for record in read_committed(bootstrap, out)]
    assert values == [b"out first%d" % n for n in range(HALF)] + [b"out second%d" % n for n in range(HALF)]


@pytest.mark.parametrize(
    ("held", "counts_s"),
    [
        pytest.param(ApiKey.TXN_OFFSET_COMMIT, 0.1, id="between the look and the commit"),
        pytest.param(ApiKey.PRODUCE, 60.0, id="before its last record is written"),
    ],
)
def test_output_that_is_created_anew_while_a_request_of_the_commit_is_under_way_aborts_it(
    bootstrap: str, proxy: HoldProxy, monkeypatch: pytest.MonkeyPatch, held: ApiKey, counts_s: float
) -> None:
    """The topics are asked for beside the offsets: a look that comes too early, or counts for too long, would see the former topic."""
    monkeypatch.setattr("eos.kafka.producer._LOOK_COUNTS_S", counts_s)
    source, out, group = unique("in"), unique("out"), unique("own")
    create_topics(bootstrap, {source: 1, out: 1})
    load(bootstrap, source, 2, "v")
    settings = settings_for(proxy.bootstrap_servers, group=group)
    outcomes: list[bool] = []
    accident: Future[None] | None = None
    with Session(settings, app="own", inputs=[source], outputs=[out]) as session:
        while session.committed_offsets.get(Partition(source, 0), 0) < 2:
            batch = session.fetch(2, 1.0)
            with session.transaction(batch) as txn:
                for number, record in enumerate(batch):
                    if number and accident is None:
                        wait_delivered(producer_of(session._owner)._client)
                        accident = proxy_holds(proxy, held, lambda: recreate_topic(bootstrap, out))
                    txn.produce(out, record.value)
            if batch:
                outcomes.append(txn.committed)
    assert accident is not None
    accident.result(PATIENCE_S)
    assert not outcomes[0]
    assert outcomes[-1]
    assert [record.value for record in read_committed(bootstrap, out)] == [b"v0", b"v1"]
    assert committed_offsets(bootstrap, group, [(source, 0)])[source, 0][0] == 2


def proxy_holds(proxy: HoldProxy, held: ApiKey, accident: Callable[[], None]) -> Future[None]:
    """The next such request waits until the accident has happened."""
    hold = proxy.hold(held)

    def happen() -> None:
        hold.wait_held(PATIENCE_S)
        time.sleep(0.3)  # what else the commit asks for is answered meanwhile
        accident()
        hold.release()

    beside = ThreadPoolExecutor(1)
    done = beside.submit(happen)
    beside.shutdown(wait=False)
    return done

"""What a takeover leaves in the log, and what the next owner reads while the former one's transaction is open."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from eos import OutputBatch, Partition
from eos.core.pipeline import Pipeline
from eos.core.producer import ShardProducer
from eos.kafka.group_offsets import Committed, GroupMetadata
from eos.shards import OrdinalShard
from tests.support.dump_log import EntryKind, dump_log
from tests.support.members import cooperative_member
from tests.support.observer import (
    assert_copied,
    committed_offsets,
    lso,
    produce_plain,
    read_committed,
    read_uncommitted,
    unique,
    watermarks,
)
from tests.support.patience import PATIENCE_S
from tests.support.sessions import session_for, wait_delivered
from tests.support.settings import settings_of

if TYPE_CHECKING:
    from eos.local import LocalKafka
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker

SHORT_TIMEOUT_MS = 15_000  # what is to be seen before it passes includes the heir's whole transaction


def write_and_leave_open(producer: ShardProducer, out: str) -> None:
    """What a killed process leaves: the records are at the broker, the end never comes."""
    txn = producer.transaction()
    txn._begun().begin()
    txn.produce(out, b"of the former owner")
    wait_delivered(producer._client)


def test_takeover_aborts_at_once_and_the_epochs_rise(
    kafka: LocalKafka, bootstrap: str, topic: NewTopic
) -> None:
    """Log: data, the fence's abort marker, data of the new owner, its commit marker; one producer id."""
    out, shard = topic(), OrdinalShard(unique("takeover"), "g", 0)
    settings = settings_of(bootstrap)
    former = ShardProducer(settings, shard)
    former.open()
    write_and_leave_open(former, out)
    began = time.monotonic()
    with ShardProducer(settings, shard) as heir:
        assert read_committed(bootstrap, out, timeout_s=PATIENCE_S) == []
        assert time.monotonic() - began < 30  # the transaction's timeout is 60 s
        with heir.transaction() as txn:
            txn.produce(out, b"of the heir")
    former.close()
    log = dump_log(kafka.tool, kafka.data_dir(1), (out, 0))
    assert [entry.kind for entry in log] == [
        EntryKind.DATA,
        EntryKind.ABORT_MARKER,
        EntryKind.DATA,
        EntryKind.COMMIT_MARKER,
    ]
    assert len({entry.producer_id for entry in log}) == 1
    data, abort, new_data, commit = (entry.producer_epoch for entry in log)
    assert data < abort < new_data == commit
    assert [record.value for record in read_committed(bootstrap, out)] == [b"of the heir"]


def test_random_id_leaves_readers_waiting_until_the_timeout(
    kafka: LocalKafka, bootstrap: str, topic: NewTopic
) -> None:
    """Why ids with random parts are refused: nobody ever initialises the dead one's id again."""
    out = topic()

    def with_a_random_id() -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": unique("random"),
                "transaction.timeout.ms": SHORT_TIMEOUT_MS,
                "message.timeout.ms": SHORT_TIMEOUT_MS,
                "log_level": 0,
            }
        )
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        return producer

    dead = with_a_random_id()
    dead.produce(out, b"of the dead")
    assert dead.flush(PATIENCE_S) == 0
    heir = with_a_random_id()
    heir.produce(out, b"of the heir")
    heir.commit_transaction(PATIENCE_S)
    assert lso(bootstrap, out) == {0: 0}
    assert read_committed(bootstrap, out, settled=False) == []
    deadline = time.monotonic() + PATIENCE_S
    while watermarks(bootstrap, out)[0] < (0, 3):  # the marker may come after the answer
        assert time.monotonic() < deadline
        time.sleep(0.05)
    kinds = [entry.kind for entry in dump_log(kafka.tool, kafka.data_dir(1), (out, 0))]
    assert kinds[:3] == [EntryKind.DATA, EntryKind.DATA, EntryKind.COMMIT_MARKER]
    assert [record.value for record in read_committed(bootstrap, out, timeout_s=PATIENCE_S)] == [
        b"of the heir"
    ]
    log = dump_log(kafka.tool, kafka.data_dir(1), (out, 0))
    assert [entry.kind for entry in log[2:]] == [EntryKind.COMMIT_MARKER, EntryKind.ABORT_MARKER]
    assert log[0].producer_id == log[3].producer_id != log[1].producer_id


@contextlib.contextmanager
def joined(bootstrap: str, group: str, topic: str) -> Iterator[GroupMetadata]:
    """The metadata of a live member of a group, which leaves at the block's end."""
    member = cooperative_member(bootstrap, group)
    try:
        member.subscribe([topic])
        deadline = time.monotonic() + PATIENCE_S
        while not member.assignment() and time.monotonic() < deadline:
            member.poll(0.1)
        yield GroupMetadata(group, member.consumer_group_metadata())
    finally:
        member.close()


@pytest.mark.parametrize("end", ["commits late", pytest.param("never ends it", marks=pytest.mark.slow)])
def test_partition_moves_while_its_former_owners_transaction_is_open_and_is_read_right(
    bootstrap: str, topic: NewTopic, end: str
) -> None:
    """The former owner has another ordinal, so no init of the new one ends its transaction.

    Its offsets are pending: read without waiting, they would be the old ones, and the input would be
    processed twice. The new owner waits until they are stable (KIP-447), at most for the timeout.
    """
    source, out, group, app = topic("in"), topic("out"), unique("moves"), unique("moves")
    produce_plain(bootstrap, source, [b"%d" % n for n in range(30)])
    timeout_ms = SHORT_TIMEOUT_MS if end == "never ends it" else 60_000
    settings = settings_of(bootstrap, transaction__timeout_ms=timeout_ms)
    former = ShardProducer(settings, OrdinalShard(app, group, 1))
    former.open()
    txn = former.transaction()
    txn._begun().begin()
    for n in range(10):
        txn.produce(out, b"%d" % n)
    client = former._client
    assert client is not None
    wait_delivered(client)
    with joined(bootstrap, group, source) as metadata:
        client.send_offsets(
            {Partition(source, 0): Committed(10, str(former._offsets.ledger.metadata))}, metadata, PATIENCE_S
        )
    assert len(read_uncommitted(bootstrap, out)) == 10
    assert read_committed(bootstrap, out, settled=False) == []

    def end_it() -> None:
        time.sleep(0.7)
        txn._begun().commit()

    late = threading.Thread(target=end_it)
    if end == "commits late":
        late.start()
    began = time.monotonic()
    with session_for(
        settings_of(bootstrap, input__start="earliest"), OrdinalShard(app, group, 0), [source]
    ) as heir:
        waited = run_to_the_end(heir, out, began)
    if end == "commits late":
        late.join(PATIENCE_S)
    assert waited >= 0.5
    former.close()
    assert_copied(bootstrap, group, source, out, 30)
    assert committed_offsets(bootstrap, group, [(source, 0)])[source, 0][0] == 30


def run_to_the_end(session: Pipeline, out: str, began: float) -> float:
    """Process the input to its end; returns the seconds from ``began`` to the first record."""
    first_at = None
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        batch = session.fetch(10, 0.2, 0.01)
        if batch:
            first_at = first_at or time.monotonic()
            session.stage(batch, [OutputBatch(out, batch.values)])
            session.produce()
            session.owner.committer.commit_soon()
            session.owner.committer.join(PATIENCE_S)
        elif first_at is not None and session.owner.consumer.caught_up:
            return first_at - began
    pytest.fail("the input was not read to its end")

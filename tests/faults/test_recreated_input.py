"""An input topic is deleted and created anew under its name: none of the new topic's records is skipped in silence."""

from __future__ import annotations

import time
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from eos import OffsetGapError, OffsetVector, Partition, Session
from eos.base.deadline import Deadline
from eos.core.producer import ShardProducer
from eos.errors import ConfigError
from eos.events import PartitionsAssigned, TransactionCommitted
from eos.shards import OrdinalShard
from eos.testing.proxy import ApiKey, Frame, HoldProxy, ends_with
from tests.support.jobs_for_faults import FaultJob, fault_job, in_thread, run_to_end, settings_for
from tests.support.observer import (
    PlainRecord,
    committed_offsets,
    create_topics,
    delete_topic,
    load,
    produce_plain,
    read_committed,
    recreate_topic,
    unique,
)
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

FORMER = 100
NEW = 310
OWNED: dict[str, dict[str, object]] = {
    "group": {"ownership__mode": "group"},
    "partition": {"ownership__mode": "partition", "ownership__ordinal": 0, "ownership__instances": 1},
}


@contextmanager
def plain_offset(bootstrap: str, group: str, topic: str, offset: int, metadata: str) -> Iterator[None]:
    """The offset stands as another client has committed it."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset, metadata)], asynchronous=False)
    consumer.close()
    yield


def require_only_of_the_former(bootstrap: str, out: str) -> None:
    """Nothing of the new topic was processed, and all of the former one."""
    assert {record.value for record in read_committed(bootstrap, out)} == {
        b"out former%d" % n for n in range(FORMER)
    }


@pytest.mark.parametrize("gap_s", [0.0, 3.0], ids=["at once", "after 3 s"])
@pytest.mark.parametrize("mode", ["group", "partition"])
def test_input_that_is_created_anew_while_the_job_runs_ends_it_before_any_record_is_skipped(
    bootstrap: str, mode: str, gap_s: float
) -> None:
    job = fault_job(bootstrap, partitions=1)
    (source,) = job.inputs
    load(bootstrap, source, FORMER, "former")
    with in_thread(job, settings_for(bootstrap, **OWNED[mode])) as run:
        run.wait_for_commits(FORMER)
        recreate_topic(bootstrap, source, gap_s=gap_s)
        load(bootstrap, source, NEW, "new")
        # Or "not available": if the new log is fetched from before it has grown to the old position.
        with pytest.raises(OffsetGapError, match=r"(created anew|offset not available).*Fix: "):
            run.wait()
    require_only_of_the_former(bootstrap, job.out)
    # All of it is still to come: Kafka has forgotten the offsets with the topic, so a start says where to begin.
    with pytest.raises((ConfigError, OffsetGapError), match=r"Fix"):
        run_to_end(job, settings_for(bootstrap, input__start="fail", **OWNED[mode]))


@pytest.mark.parametrize("happened", [True, False])
@pytest.mark.parametrize("mode", ["group", "partition"])
def test_input_that_is_created_anew_while_a_commit_has_no_answer_is_not_called_another_owner(
    bootstrap: str, proxy: HoldProxy, mode: str, happened: bool
) -> None:
    """The offsets had gone with the topic: the job ended with 3, and told its operator to look for a rival."""
    job = fault_job(bootstrap, partitions=1)
    (source,) = job.inputs
    load(bootstrap, source, FORMER, "former")
    unanswered = proxy.drop_reply if happened else proxy.swallow
    settings = settings_for(proxy.bootstrap_servers, transaction__commit_deadline_ms=700, **OWNED[mode])
    with in_thread(job, settings) as run:
        run.wait_for_commits(FORMER)
        unanswered(ApiKey.END_TXN, where=ends_with(committed=True), times=1_000_000)
        proxy.swallow(ApiKey.INIT_PRODUCER_ID, times=1_000_000)
        inits = len(proxy.requests(ApiKey.INIT_PRODUCER_ID))
        load(bootstrap, source, 10, "last")
        Deadline(PATIENCE_S).wait_for(lambda: len(proxy.requests(ApiKey.INIT_PRODUCER_ID)) > inits)
        recreate_topic(bootstrap, source)
        proxy.clear_rules()
        with pytest.raises(OffsetGapError, match=r"created anew.*--to earliest"):
            run.wait()


def id_on_the_wire(bootstrap: str, topic: str) -> bytes:
    return urlsafe_b64decode(topic_id(bootstrap, topic) + "==")


class BrokersBehind:
    """Gives clients the id that a topic had, as brokers do that do not know yet that it was created anew.

    Args:
        proxy: before the broker.
        bootstrap: the broker itself.
        topic: which.
        client_id: of the clients that hear of the new one, as soon as they may.
    """

    def __init__(self, proxy: HoldProxy, bootstrap: str, topic: str, *, client_id: str) -> None:
        self._bootstrap, self._topic, self._client_id = bootstrap, topic, client_id
        self._former = id_on_the_wire(bootstrap, topic)
        self._new: bytes | None = None
        self.reader_may_know = False
        proxy.edit_reply(ApiKey.METADATA, self._edit, times=1_000_000)

    def topic_is_created(self) -> None:
        self._new = id_on_the_wire(self._bootstrap, self._topic)

    def _edit(self, frame: Frame, answer: bytes) -> bytes:
        if self._new is None:
            return frame.with_no_topics(answer)
        if self.reader_may_know and frame.client_id == self._client_id:
            return answer
        return answer.replace(self._new, self._former)


@pytest.mark.parametrize("mode", ["group", "partition"])
def test_new_topic_of_which_only_the_reader_has_heard_is_not_read_on_from_the_former_offset(
    bootstrap: str, proxy: HoldProxy, mode: str
) -> None:
    """As where one broker of several stood still meanwhile, and is the one that is asked for the ids when it goes on."""
    job = fault_job(bootstrap, partitions=1)
    (source,) = job.inputs
    load(bootstrap, source, FORMER, "former")
    settings = settings_for(proxy.bootstrap_servers, kafka__consumer={"client.id": "reader"}, **OWNED[mode])
    with in_thread(job, settings) as run:
        run.wait_for_commits(FORMER)
        brokers = BrokersBehind(proxy, bootstrap, source, client_id="reader")
        recreate_topic(bootstrap, source)
        brokers.topic_is_created()
        load(bootstrap, source, NEW, "new")
        brokers.reader_may_know = True
        with pytest.raises(OffsetGapError, match=r"created anew.*Fix: "):
            run.wait()
    require_only_of_the_former(bootstrap, job.out)


@pytest.mark.parametrize(("told_to", "answers"), [("reader", 1), ("reader", 4), ("asker", 1), ("asker", 3)])
@pytest.mark.parametrize("mode", ["group", "partition"])
def test_job_that_a_broker_tells_a_former_id_goes_on(
    bootstrap: str, proxy: HoldProxy, mode: str, told_to: str, answers: int
) -> None:
    """As a broker does that stood still while the topic was created anew. No record was fetched under that id."""
    job = fault_job(bootstrap, partitions=1)
    (source,) = job.inputs
    former = id_on_the_wire(bootstrap, source)
    recreate_topic(bootstrap, source)
    now = id_on_the_wire(bootstrap, source)
    told = 0

    def stale(_: Frame, answer: bytes) -> bytes:
        nonlocal told
        told += now in answer
        return answer.replace(now, former)

    load(bootstrap, source, FORMER, "a")
    reader = {"client.id": "reader", "topic.metadata.refresh.interval.ms": 500}
    settings = settings_for(
        proxy.bootstrap_servers,
        kafka__client={"client.id": "asker"},
        kafka__consumer=reader,
        **OWNED[mode],
    )
    with in_thread(job, settings) as run:
        run.wait_for_commits(FORMER)
        proxy.edit_reply(
            ApiKey.METADATA,
            stale,
            times=answers,
            where=lambda frame: frame.client_id == told_to and source.encode() in frame.payload,
        )
        loaded = FORMER
        while told < answers:  # it fetches all the time
            load(bootstrap, source, 10, f"b{loaded} ")
            loaded += 10
            assert run.error is None, run.error
        run.wait_for_commits(loaded)
        run.stop()
    assert job.check(bootstrap).processed == loaded


@pytest.mark.parametrize("answers", [1, 2, 3])
@pytest.mark.parametrize("mode", ["group", "partition"])
def test_job_that_a_broker_tells_a_former_id_starts(
    bootstrap: str, proxy: HoldProxy, mode: str, answers: int
) -> None:
    job = fault_job(bootstrap, partitions=1)
    (source,) = job.inputs
    former = id_on_the_wire(bootstrap, source)
    recreate_topic(bootstrap, source)
    now = id_on_the_wire(bootstrap, source)
    load(bootstrap, source, FORMER, "a")
    mine = {
        "kafka__client": {"client.id": "asker"},
        "kafka__consumer": {"client.id": "reader"},
        **OWNED[mode],
    }
    run_to_end(job, settings_for(bootstrap, ownership__static_membership=False, **mine))
    load(bootstrap, source, FORMER, "b")
    proxy.edit_reply(
        ApiKey.METADATA,
        lambda _, answer: answer.replace(now, former),
        times=answers,
        where=lambda frame: frame.client_id == "asker" and source.encode() in frame.payload,
    )
    run_to_end(job, settings_for(proxy.bootstrap_servers, ownership__static_membership=False, **mine))
    assert job.check(bootstrap).processed == 2 * FORMER


def test_idle_job_notices_the_new_topic_by_itself(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No record of it is ever fetched: the position is at the new topic's end."""
    monkeypatch.setattr("eos.watches.input_topics._ASK_EVERY_S", 1.0)  # of 30 s
    job = fault_job(bootstrap, partitions=1)
    (source,) = job.inputs
    load(bootstrap, source, FORMER, "former")
    with in_thread(job, settings_for(bootstrap)) as run:
        run.wait_for_commits(FORMER)
        delete_topic(bootstrap, source)
        create_topics(bootstrap, {source: 1})
        load(bootstrap, source, FORMER, "new")
        with pytest.raises(OffsetGapError, match=r"created anew|offset not available"):
            run.wait()


@pytest.mark.parametrize("mode", ["group", "partition"])
def test_offsets_of_the_former_topic_are_refused_at_the_next_start(bootstrap: str, mode: str) -> None:
    """A commit that comes after the deletion leaves them: here they are put back as they were."""
    job = fault_job(bootstrap, partitions=1)
    (source,) = job.inputs
    load(bootstrap, source, FORMER, "former")
    changes: dict[str, object] = {**OWNED[mode], "ownership__static_membership": False}
    settings = settings_for(bootstrap, **changes)
    run_to_end(job, settings)
    offset, metadata = committed_offsets(bootstrap, job.group, [(source, 0)])[source, 0]
    assert offset == FORMER
    recreate_topic(bootstrap, source)
    load(bootstrap, source, NEW, "new")
    with (
        plain_offset(bootstrap, job.group, source, FORMER, metadata),
        pytest.raises(OffsetGapError, match="created anew"),
    ):
        run_to_end(job, settings)
    assert len(read_committed(bootstrap, job.out)) == FORMER

    # Offsets that name no topic are adopted, and get its id.
    with plain_offset(bootstrap, job.group, source, 0, ""):
        run_to_end(job, settings_for(bootstrap, ownership__adopt_offsets=True, **changes))
    assert len(read_committed(bootstrap, job.out)) == FORMER + NEW
    _, metadata = committed_offsets(bootstrap, job.group, [(source, 0)])[source, 0]
    assert f" topic={topic_id(bootstrap, source)}" in metadata


def topic_id(bootstrap: str, topic: str) -> str:
    from confluent_kafka import TopicCollection

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    found = admin.describe_topics(TopicCollection([topic]))[topic].result(PATIENCE_S).topic_id
    return str(found).replace("+", "-").replace("/", "_")


def test_idle_partition_with_an_older_offset_gets_the_topics_id_at_the_next_start(bootstrap: str) -> None:
    job = fault_job(bootstrap, partitions=1)
    (source,) = job.inputs
    load(bootstrap, source, FORMER, "former")
    older = f"eos1 mode=group shard=#0 owner=abcdef commit=7 at={int(time.time())} had=1"
    settings = settings_for(bootstrap, ownership__static_membership=False)
    with plain_offset(bootstrap, job.group, source, FORMER, older), in_thread(job, settings) as run:
        run.told(TransactionCommitted)
        run.stop()
    offset, metadata = committed_offsets(bootstrap, job.group, [(source, 0)])[source, 0]
    assert offset == FORMER
    assert f" app={job.name} topic={topic_id(bootstrap, source)}" in metadata


def test_loop_of_ones_own_commits_nothing_of_the_new_topic(bootstrap: str) -> None:
    source, out, group = unique("in"), unique("out"), unique("own")
    create_topics(bootstrap, {source: 1, out: 1})
    load(bootstrap, source, FORMER, "former")
    settings = settings_for(bootstrap, ownership__static_membership=False, group=group)
    recreated = False
    deadline = time.monotonic() + PATIENCE_S
    with (
        Session(settings, app="own", inputs=[source], outputs=[out]) as session,
        pytest.raises(OffsetGapError, match=r"created anew|offset not available"),
    ):
        while time.monotonic() < deadline:
            batch = session.fetch(50, 0.5)
            with session.transaction(batch) as txn:
                for record in batch:
                    txn.produce(out, record.value)
            if not recreated and session.committed_offsets.get(Partition(source, 0)) == FORMER:
                recreate_topic(bootstrap, source)
                load(bootstrap, source, NEW, "new")
                recreated = True
    assert recreated
    assert {record.value for record in read_committed(bootstrap, out)} == {
        b"former%d" % n for n in range(FORMER)
    }


def test_offsets_made_by_hand_for_the_former_topic_are_refused_after_the_first_commit(bootstrap: str) -> None:
    """A vector of plain numbers names no topic; what the same producer has committed before does."""
    source, out, group = unique("in"), unique("out"), unique("own")
    create_topics(bootstrap, {source: 1, out: 1})
    settings = settings_for(bootstrap)
    member = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    from eos.kafka.group_offsets import GroupMetadata

    metadata = GroupMetadata(group, member.consumer_group_metadata())
    with ShardProducer(settings, OrdinalShard("own", group, 0)) as producer:
        with producer.transaction() as txn:
            txn.produce(out, b"1")
            txn.add_offsets(OffsetVector({Partition(source, 0): 1}), metadata)
        recreate_topic(bootstrap, source)
        with pytest.raises(OffsetGapError, match="created anew"), producer.transaction() as txn:
            txn.produce(out, b"2")
            txn.add_offsets(OffsetVector({Partition(source, 0): 2}), metadata)
    member.close()
    assert [record.value for record in read_committed(bootstrap, out)] == [b"1"]


def test_job_that_is_assigned_a_new_partition_of_the_same_topic_goes_on(bootstrap: str) -> None:
    """The id is the topic's, whatever its partitions: no false alarm."""
    from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

    job: FaultJob = fault_job(bootstrap, partitions=1)
    (source,) = job.inputs
    load(bootstrap, source, FORMER, "a")
    soon = {"topic.metadata.refresh.interval.ms": 1_000}
    with in_thread(job, settings_for(bootstrap, kafka__consumer=soon)) as run:
        run.wait_for_commits(FORMER)
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        admin.create_partitions([NewPartitions(source, 2)])[source].result(PATIENCE_S)
        run.told(PartitionsAssigned, count=2)
        produce_plain(bootstrap, source, [PlainRecord(b"b%d" % n, partition=n % 2) for n in range(100)])
        run.wait_for_commits(FORMER + 100)
        run.stop()
    assert job.check(bootstrap).processed == FORMER + 100

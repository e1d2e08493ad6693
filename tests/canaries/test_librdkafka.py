"""Canaries: what confluent-kafka and librdkafka do today that eos works around, or relies on.

Plain clients only. When one of these fails after an upgrade, the rule that it names can be dropped, or
has lost its ground.
"""

from __future__ import annotations

import contextlib
import gc
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ElectionType,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # the package only lacks __all__

from eos.base.deadline import Deadline
from eos.ops.check.transactions import TransactionsView
from eos.testing.proxy.frames import ApiKey
from eos.testing.proxy.hold_proxy import HoldProxy
from tests.support.observer import create_topics, lso, produce_plain, read_committed, recreate_topic, unique
from tests.support.patience import PATIENCE_S
from tests.support.processes import running
from tests.support.raw_headers import produce_with_names
from tests.support.refused import refuse_first_batch
from tests.support.settings import settings_of

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = [pytest.mark.broker, pytest.mark.canary]

LOST_S = 0.4  # librdkafka looks for the coordinator every 500 ms
_TRIES = 5
ASKED_AGAIN_S = 0.9  # and for topics' leaders every 1,000 ms


def transactional(bootstrap: str, transactional_id: str | None = None, **options: Any) -> Producer:
    config = {
        "bootstrap.servers": bootstrap,
        "transactional.id": transactional_id or unique("canary"),
        "log_level": 0,
    }
    return Producer(
        config
        | {name if name.endswith("_cb") else name.replace("_", "."): value for name, value in options.items()}
    )


@pytest.fixture
def producer(bootstrap: str) -> Iterator[Producer]:
    one = transactional(bootstrap)
    one.init_transactions(PATIENCE_S)
    yield one
    with contextlib.suppress(RuntimeError):  # a test has closed it
        one.purge()


@pytest.fixture
def out(topic: NewTopic) -> str:
    return topic("canary")


def commit(producer: Producer, topic: str, *values: str) -> None:
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.commit_transaction(PATIENCE_S)


def error_of(call: Any, *arguments: Any) -> KafkaError:
    with pytest.raises(KafkaException) as raised:
        call(*arguments)
    error = raised.value.args[0]
    assert isinstance(error, KafkaError)
    return error


def test_transactions_of_one_instance_share_an_epoch(proxy: HoldProxy, out: str) -> None:
    """EndTxn v5 (KIP-890) would raise the epoch with each transaction: then no producer need be suspect."""
    producer = transactional(proxy.bootstrap_servers)
    producer.init_transactions(PATIENCE_S)
    for value in ("a", "b"):
        commit(producer, out, value)
    assert [seen.api_version for seen in proxy.requests(ApiKey.END_TXN)] == [1, 1]
    assert all(seen.api_version <= 4 for seen in proxy.requests(ApiKey.ADD_PARTITIONS_TO_TXN))


def test_a_group_id_outside_ascii_is_taken_into_no_transaction(
    bootstrap: str, producer: Producer, out: str
) -> None:
    """Of the consumer it is taken. eos refuses such a group in its settings, or a job would end at its first commit."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "gr\u00fc\u00dfe"})
    with contextlib.closing(consumer):
        consumer.assign([TopicPartition(out, 0, 0)])
        producer.begin_transaction()
        producer.produce(out, "never")
        error = error_of(
            producer.send_offsets_to_transaction,
            [TopicPartition(out, 0, 0)],
            consumer.consumer_group_metadata(),
            PATIENCE_S,
        )
    assert error.code() == KafkaError._BAD_MSG
    producer.abort_transaction(PATIENCE_S)


def test_close_inside_a_transaction_aborts_it(bootstrap: str, producer: Producer, out: str) -> None:
    """Since 2.16; before, the LSO stayed pinned. eos aborts by itself, and never calls close()."""
    producer.begin_transaction()
    producer.produce(out, "never")
    assert producer.flush(PATIENCE_S) == 0
    assert lso(bootstrap, out) == {0: 0}
    producer.close()
    assert read_committed(bootstrap, out, timeout_s=30) == []  # half of transaction.timeout.ms
    assert lso(bootstrap, out) == {0: 2}


def test_destroyed_inside_a_transaction_leaves_it_open(bootstrap: str, out: str) -> None:
    """What a killed process leaves: only the timeout, or the next init of the same id, ends it."""
    name = unique("canary")
    one = transactional(bootstrap, name)
    one.init_transactions(PATIENCE_S)
    one.begin_transaction()
    one.produce(out, "never")
    assert one.flush(PATIENCE_S) == 0
    del one
    time.sleep(0.5)
    assert lso(bootstrap, out) == {0: 0}
    transactional(bootstrap, name).init_transactions(PATIENCE_S)
    assert read_committed(bootstrap, out) == []


def test_producer_that_was_fenced_by_its_first_record_flags_a_conflict_as_retriable(
    bootstrap: str, out: str
) -> None:
    """So the fatal error that was shown before decides, not the flag: a retry on it would never end.

    The first calls may still say _FENCED, until librdkafka's main thread has gone on.
    """
    name = unique("canary")
    zombie = transactional(bootstrap, name)
    zombie.init_transactions(PATIENCE_S)
    transactional(bootstrap, name).init_transactions(PATIENCE_S)
    zombie.begin_transaction()
    zombie.produce(out, "never")
    fence = error_of(zombie.commit_transaction, PATIENCE_S)
    assert (fence.name(), fence.fatal()) == ("_FENCED", True)
    for call in (zombie.begin_transaction, zombie.abort_transaction):
        deadline = time.monotonic() + PATIENCE_S
        while (error := error_of(call)).name() == "_FENCED":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert (error.name(), error.retriable(), error.fatal()) == ("_CONFLICT", True, False)


def test_poll_raises_a_fatal_error_instead_of_calling_error_cb(bootstrap: str, out: str) -> None:
    """So every poll of eos expects it; and produce() then says no more than _FATAL, without a flag."""
    name, reported = unique("canary"), list[KafkaError]()
    zombie = transactional(bootstrap, name, error_cb=reported.append)
    zombie.init_transactions(PATIENCE_S)
    transactional(bootstrap, name).init_transactions(PATIENCE_S)
    zombie.begin_transaction()
    zombie.produce(out, "never")
    deadline = time.monotonic() + PATIENCE_S

    def poll_until_it_raises() -> None:
        while time.monotonic() < deadline:
            zombie.poll(0.05)

    error = error_of(poll_until_it_raises)
    assert (error.name(), error.fatal()) == ("_FENCED", True)
    assert not [one for one in reported if one.fatal()]
    later = error_of(zombie.produce, out, "never")
    assert (later.name(), later.fatal(), later.retriable()) == ("_FATAL", False, False)


def test_record_that_the_broker_refused_fails_the_transaction_after_the_next(
    bootstrap: str, producer: Producer
) -> None:
    """The sequence number of the refused record is missing; so eos rebuilds the producer."""
    out = unique("small")
    create_topics(bootstrap, {out: 1}, config={"max.message.bytes": "5000"})
    producer.begin_transaction()
    producer.produce(out, "x" * 6000)
    assert error_of(producer.commit_transaction, PATIENCE_S).txn_requires_abort()
    producer.abort_transaction(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(out, "small")
    error = error_of(producer.commit_transaction, PATIENCE_S)
    assert (error.name(), error.txn_requires_abort()) == ("OUT_OF_ORDER_SEQUENCE_NUMBER", True)
    producer.abort_transaction(PATIENCE_S)


@pytest.mark.slow
def test_abort_right_behind_the_first_record_may_be_fatal(bootstrap: str, topic: NewTopic) -> None:
    """Issue 4849: EndTxn overtakes AddPartitionsToTxn. eos takes it for a reason to reopen, not for a fence."""
    codes = set()
    for _ in range(15):
        producer = transactional(bootstrap)
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        for out in {topic() for _ in range(2)}:
            producer.produce(out, "x")
        producer.poll(0.005)
        try:
            producer.abort_transaction(PATIENCE_S)
        except KafkaException as error:
            if error.args[0].name() != "_TIMED_OUT":  # a machine that is too busy to show it
                codes.add((error.args[0].name(), error.args[0].fatal()))
            break
    if not codes:
        pytest.skip("not seen in 15 tries on this machine")
    assert codes == {("INVALID_TXN_STATE", True)}


def test_batch_that_meets_a_full_queue_is_refused_from_there_to_its_end(bootstrap: str, out: str) -> None:
    """So the rest can be given again without reordering, also where a smaller record would have fitted."""
    plain = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.kbytes": 64, "linger.ms": 500})
    plain.list_topics(out, PATIENCE_S)
    batch: list[dict[str, Any]] = [{"value": b"x" * (3000 if n % 3 else 30)} for n in range(200)]
    accepted = plain.produce_batch(out, batch)
    refused = [n for n, message in enumerate(batch) if "_error" in message]
    assert 0 < accepted < 200
    assert refused == list(range(accepted, 200))
    assert batch[-1]["_error"].code() == KafkaError._QUEUE_FULL
    plain.flush(PATIENCE_S)


def test_batch_ignores_partitions_and_headers(bootstrap: str, topic: NewTopic) -> None:
    """Although it documents partitions. So eos gives records that have either to produce()."""
    out = topic("canary", 3)
    plain = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    plain.produce_batch(
        out, [{"value": b"v", "key": b"k", "partition": n % 3, "headers": [("h", b"v")]} for n in range(30)]
    )
    assert plain.flush(PATIENCE_S) == 0
    seen = read_committed(bootstrap, out)
    assert len({record.partition for record in seen}) == 1
    assert {record.headers for record in seen} == {()}


def test_init_before_a_broker_is_connected_waits_half_a_second(proxy: HoldProxy) -> None:
    """The coordinator is looked for at once, and then every 500 ms. eos calls again, which makes it look again.

    The first connection is ready after 100 ms here. That may be before the first look, on an idle machine or on one with much
    else to do: the wait shows in one of a few tries, or it is gone.
    """
    took_s: list[float] = []
    while not took_s or (max(took_s) < LOST_S and len(took_s) < _TRIES):
        connected = proxy.hold(ApiKey.API_VERSIONS)
        producer = transactional(proxy.bootstrap_servers)
        began = time.monotonic()
        release = threading.Timer(0.1, connected.release)
        release.start()
        producer.init_transactions(PATIENCE_S)
        took_s.append(time.monotonic() - began)
        release.join()
        assert connected.is_held
    assert max(took_s) >= LOST_S, took_s


def test_offsets_that_are_asked_for_between_two_connections_take_a_second(bootstrap: str, out: str) -> None:
    """Issue 2869: nothing is connected in that moment, and nothing connects before the next look. eos connects first."""
    question = {TopicPartition(out, 0): OffsetSpec.latest()}  # type: ignore[no-untyped-call]  # not annotated
    slowest, tries = 0.0, 2_000
    for attempt in range(tries):  # each 20th client or so meets the moment
        admin = AdminClient({"bootstrap.servers": bootstrap, "reconnect.backoff.ms": 20, "log_level": 0})
        time.sleep(attempt % 6 / 1_000)
        began = time.monotonic()
        (future,) = admin.list_offsets(question, request_timeout=PATIENCE_S).values()
        assert future.result(PATIENCE_S).offset == 0
        slowest = max(slowest, time.monotonic() - began)
        if slowest >= ASKED_AGAIN_S:
            return
    pytest.fail(f"{tries} clients, none slower than {slowest:.3f} s")


@pytest.fixture
def reader(bootstrap: str) -> Iterator[Consumer]:
    one = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": unique("canary"),
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    yield one
    one.close()


def read(consumer: Consumer, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while count and time.monotonic() < deadline:
        message = consumer.poll(0.1)
        count -= message is not None and message.error() is None
    assert count == 0


def test_seek_makes_the_position_unknown_until_the_next_record(
    producer: Producer, reader: Consumer, out: str
) -> None:
    """Positions are what eos commits: after a rewind, a partition that has not been read again must not have one."""
    commit(producer, out, "a", "b", "c")
    reader.assign([TopicPartition(out, 0, 0)])
    assert reader.position([TopicPartition(out, 0)])[0].offset == OFFSET_INVALID
    read(reader, 2)
    assert reader.position([TopicPartition(out, 0)])[0].offset == 2
    reader.seek(TopicPartition(out, 0, 0))
    assert reader.position([TopicPartition(out, 0)])[0].offset == OFFSET_INVALID
    read(reader, 1)
    assert reader.position([TopicPartition(out, 0)])[0].offset == 1


def test_end_event_and_the_position_after_it_stand_behind_the_markers(
    producer: Producer, reader: Consumer, out: str
) -> None:
    """Records at 0 and 1, the marker at 2: a committed position may be one that no record ever had."""
    commit(producer, out, "a", "b")
    reader.assign([TopicPartition(out, 0, 0)])
    read(reader, 2)
    deadline = time.monotonic() + PATIENCE_S
    end = None
    while end is None and time.monotonic() < deadline:
        message = reader.poll(0.1)
        error = None if message is None else message.error()
        if message is not None and error is not None and error.code() == KafkaError._PARTITION_EOF:
            end = message.offset()
    assert end == 3
    assert reader.position([TopicPartition(out, 0)])[0].offset == 3


SENDS_OFFSETS = """
import sys, threading, time
from confluent_kafka import Consumer, Producer, TopicPartition
proxied, bootstrap, topic, strategy = sys.argv[1:]
producer = Producer({
    "bootstrap.servers": proxied, "transactional.id": topic, "log_level": 0,
    "metadata.recovery.strategy": strategy,
})
member = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "log_level": 0})
producer.init_transactions(60)

def transaction(offset):
    producer.begin_transaction()
    producer.produce(topic, "x")
    producer.flush(60)
    producer.send_offsets_to_transaction(
        [TopicPartition(topic, 0, offset)], member.consumer_group_metadata(), 2)
    producer.commit_transaction(60)

transaction(1)
print("first", flush=True)
time.sleep(3)  # in which all connections are cut
thread = threading.Thread(target=transaction, args=(2,), daemon=True)
thread.start()
thread.join(20)
print("hangs" if thread.is_alive() else "returned", flush=True)
"""


@pytest.mark.parametrize(("strategy", "outcome"), [("rebootstrap", "hangs"), ("none", "returned")])
def test_offsets_behind_a_loss_of_all_connections(
    proxy: HoldProxy, bootstrap: str, out: str, strategy: str, outcome: str
) -> None:
    """Issue 5511: the rebootstrap that is the default leaves send_offsets without an answer or a timeout."""
    with running(SENDS_OFFSETS, proxy.bootstrap_servers, bootstrap, out, strategy) as child:
        child.wait_line("first", PATIENCE_S)
        done = threading.Event()

        def cut_all() -> None:
            for task in list(proxy._connections):
                task.cancel()
            done.set()

        proxy._loop.call_soon_threadsafe(cut_all)
        assert done.wait(PATIENCE_S)
        assert child.wait_line("hangs|returned", PATIENCE_S) == outcome


def test_statistics_tell_producer_id_and_epoch(bootstrap: str) -> None:
    """What a producer without offsets compares after a reopen."""
    name, seen = unique("canary"), list[tuple[int, int]]()

    def on_statistics(text: str) -> None:
        state = json.loads(text)["eos"]
        seen.append((state["producer_id"], state["producer_epoch"]))

    found = []
    for _ in range(2):
        producer = transactional(bootstrap, name, stats_cb=on_statistics, statistics_interval_ms=50)
        producer.init_transactions(PATIENCE_S)
        seen.clear()
        deadline = time.monotonic() + PATIENCE_S
        while not [one for one in seen if one[0] >= 0] and time.monotonic() < deadline:
            producer.poll(0.05)
        found.append(seen[-1])
        del producer
    (first, first_epoch), (second, second_epoch) = found
    assert first == second
    assert second_epoch == first_epoch + 1


def test_name_of_a_header_that_is_not_utf8_fails_once_and_is_a_null_pointer_after(
    bootstrap: str, topic: NewTopic
) -> None:
    """`eos.headers`: what it makes of the rest rests on this; `_unreadable` can go once the client raises every time."""
    source = topic()
    produce_with_names(bootstrap, source, [(b"v", [(b"good", b"1"), (b"bad\xff", b"2")])])
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": unique("canary"), "log_level": 0})
    consumer.assign([TopicPartition(source, 0, 0)])
    try:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        with pytest.raises(SystemError) as raised:
            message.headers()
        assert isinstance(raised.value.__cause__, UnicodeDecodeError)
        assert raised.value.__cause__.object == b"bad\xff"
        headers = message.headers()
        assert isinstance(headers, list)
        good, bad = headers
        assert good == ("good", b"1")
        assert (gc.get_referents(bad), len(bad), bad[1]) == ([b"2"], 2, b"2")
    finally:
        consumer.close()


def test_offsets_that_were_asked_for_in_vain_are_answered_as_invalid_without_an_error(
    proxy: HoldProxy, out: str
) -> None:
    """eos.kafka.admin takes a negative offset for no answer."""
    admin = AdminClient({"bootstrap.servers": proxy.bootstrap_servers})
    question = {TopicPartition(out, 0): OffsetSpec.latest()}  # type: ignore[no-untyped-call]  # not annotated
    (future,) = admin.list_offsets(question, request_timeout=PATIENCE_S).values()
    assert future.result(PATIENCE_S).offset == 0
    held = proxy.hold(ApiKey.LIST_OFFSETS)
    (future,) = admin.list_offsets(question, request_timeout=1.0).values()
    assert future.result(PATIENCE_S).offset == OFFSET_INVALID
    held.release()


ASKS_WITHOUT_TIME = """
import sys
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

admin = AdminClient({"bootstrap.servers": sys.argv[1], "log_level": 0})
for _ in range(5_000):
    (future,) = admin.list_offsets({TopicPartition(sys.argv[2], 0): OffsetSpec.latest()}, request_timeout=0.0).values()
    future.exception()
"""


def test_offsets_that_are_asked_for_without_time_corrupt_the_heap(bootstrap: str, out: str) -> None:
    """eos.kafka.admin gives such a question a second at least."""
    command = [sys.executable, "-c", ASKS_WITHOUT_TIME, bootstrap, out]
    ends = (subprocess.run(command, check=False, capture_output=True, timeout=PATIENCE_S) for _ in range(5))
    assert any(one.returncode < 0 for one in ends)


ASKS_INSIDE_A_CALLBACK = """
import sys, time, uuid
from confluent_kafka import Consumer
servers, topic = sys.argv[1:]
def on_assign(consumer, partitions):
    consumer.list_topics(topic, 60)
    consumer.assign(partitions)
config = {"bootstrap.servers": servers, "group.id": uuid.uuid4().hex, "log_level": 0}
consumer = Consumer(config | {"statistics.interval.ms": 1, "stats_cb": [].append})
consumer.subscribe([topic], on_assign=on_assign)
end = time.monotonic() + 60
while time.monotonic() < end and not consumer.assignment():
    consumer.poll(0.1)
consumer.poll(0.5)
"""


def test_question_for_topics_inside_a_callback_ends_the_process_at_the_next_callback(
    bootstrap: str, out: str
) -> None:
    """The inner call takes away what the outer one has noted for its callbacks (CallState). session/assignment asks another client."""
    ended = subprocess.run(
        [sys.executable, "-c", ASKS_INSIDE_A_CALLBACK, bootstrap, out],
        check=False,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == -signal.SIGABRT
    assert b"cs != NULL" in ended.stderr


ASKS_FOR_A_GROUP = """
import sys, time, uuid
from confluent_kafka.admin import AdminClient

for _ in range(10):
    admin = AdminClient({"bootstrap.servers": sys.argv[1], "log_level": 0})
    (future,) = admin.describe_consumer_groups([uuid.uuid4().hex], request_timeout=0.3).values()
    print(future.exception(), flush=True)
    time.sleep(1)
"""


def test_group_whose_coordinator_is_found_after_the_question_s_timeout_ends_the_process(
    proxy: HoldProxy,
) -> None:
    """librdkafka's issue 4605. eos.kafka.groups gives such a question the longest timeout, and waits for less."""
    command = [sys.executable, "-c", ASKS_FOR_A_GROUP, proxy.bootstrap_servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        for _ in range(10):
            holds = [proxy.hold(ApiKey.FIND_COORDINATOR) for _ in range(4)]
            asking.stdout.readline()
            time.sleep(0.2)
            for one in holds:
                one.release()
            proxy.clear_rules()
        asking.wait(PATIENCE_S)
        assert asking.returncode == -signal.SIGABRT, asking.stderr


ASKS_ABOUT_THE_CLUSTER = """
import sys
from confluent_kafka.admin import AdminClient

admin = AdminClient({"bootstrap.servers": sys.argv[1], "log_level": 0})
for _ in range(5):
    print(admin.describe_cluster(request_timeout=2).exception(), flush=True)
"""


def test_question_about_a_cluster_whose_broker_names_none_ends_the_process(proxy: HoldProxy) -> None:
    """A single broker names none while it is fenced. eos.kafka.admin_connection asks about topics instead.

    The first answer that names none must be the question's own, and the client asks for itself too: up to five tries.
    """

    def ended(nth: int) -> subprocess.CompletedProcess[bytes]:
        proxy.clear_rules()
        proxy.edit_reply(
            ApiKey.METADATA, lambda frame, answer: frame.with_no_brokers(answer), nth=nth, times=9
        )
        return subprocess.run(
            [sys.executable, "-c", ASKS_ABOUT_THE_CLUSTER, proxy.bootstrap_servers],
            check=False,
            capture_output=True,
            timeout=PATIENCE_S,
        )

    ends = map(ended, (2, 3, 1, 2, 3))
    failed = next(one for one in ends if one.returncode)
    assert failed.returncode == -signal.SIGABRT
    assert b"rko_result" in failed.stderr


def test_election_of_leaders_takes_no_timeout(bootstrap: str) -> None:
    """Two names of its parameters are one string. eos.kafka.topics calls it without."""
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    with pytest.raises(SystemError):
        client.elect_leaders(ElectionType.PREFERRED, request_timeout=PATIENCE_S)
    assert isinstance(client.elect_leaders(ElectionType.PREFERRED).result(PATIENCE_S), dict)


def test_answer_about_the_first_partition_that_comes_during_an_abort_leaves_the_transaction_open(
    bootstrap: str, proxy: HoldProxy, out: str
) -> None:
    """rd_kafka_txn_handle_AddPartitionsToTxn takes the request back, and without one the abort sends no EndTxn.

    So eos waits for a first record to be written, before it aborts.
    """
    name = unique("canary")
    producer = transactional(proxy.bootstrap_servers, name)
    producer.init_transactions(PATIENCE_S)

    has_come = threading.Event()

    def late(_: object, answer: bytes) -> bytes:
        has_come.set()
        time.sleep(LOST_S)
        return answer

    def purged(*_: object) -> None:  # as many of them take their time
        time.sleep(2 * LOST_S)

    proxy.edit_reply(ApiKey.ADD_PARTITIONS_TO_TXN, late)
    producer.begin_transaction()
    producer.produce(out, "never", on_delivery=purged)
    assert has_come.wait(PATIENCE_S)
    producer.abort_transaction(PATIENCE_S)
    assert proxy.requests(ApiKey.END_TXN) == []
    with TransactionsView(settings_of(bootstrap)) as view:
        assert view.describe([name])[name].state == "Ongoing"


def test_batch_that_its_leader_refused_counts_as_delivered_once_a_later_one_is_written(
    proxy: HoldProxy, bootstrap: str, out: str
) -> None:
    """rd_kafka_dr_implicit_ack (confluent-kafka-go issue 921): the records are lost, and a log line is all that says so.

    So eos looks for that line before it commits: eos.kafka.implicit_acks.
    """
    lines: list[str] = []

    class Logger:
        def log(self, _level: int, _template: str, *args: object) -> None:
            lines.append(str(args[0]))

    first_has_come = refuse_first_batch(proxy)
    producer = transactional(proxy.bootstrap_servers, debug="eos", logger=Logger())
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    told: list[object] = []
    producer.produce(out, "lost", on_delivery=lambda error, _: told.append(error))
    assert first_has_come.wait(PATIENCE_S)
    producer.produce(out, "behind it", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(PATIENCE_S) == 0
    producer.poll(0)
    assert lines.count("IMPLICITACK") == 1  # before the commit
    producer.commit_transaction(PATIENCE_S)
    assert told == [None, None]
    assert [record.value for record in read_committed(bootstrap, out)] == [b"behind it"]


def test_abort_while_the_last_transaction_is_not_over_at_the_coordinator_is_fatal(
    proxy: HoldProxy, out: str
) -> None:
    """AddPartitionsToTxn is to be asked again, nothing is open, and librdkafka sends EndTxn. eos waits, as above."""
    producer = transactional(proxy.bootstrap_servers)
    producer.init_transactions(PATIENCE_S)
    proxy.refuse(ApiKey.ADD_PARTITIONS_TO_TXN, KafkaError.CONCURRENT_TRANSACTIONS, times=1_000)
    producer.begin_transaction()
    producer.produce(out, "never")
    assert Deadline(PATIENCE_S).wait_for(lambda: bool(proxy.requests(ApiKey.ADD_PARTITIONS_TO_TXN)))
    time.sleep(LOST_S / 4)  # of the answer
    refused = error_of(producer.abort_transaction, PATIENCE_S)
    assert (refused.name(), refused.fatal()) == ("INVALID_TXN_STATE", True)


def test_consumer_logs_a_topic_s_id_before_it_gives_out_records_under_it(
    bootstrap: str, topic: NewTopic
) -> None:
    """Also that of one that was created anew, whose first records it skips. It says the id nowhere else (eos.kafka.consumer_log)."""
    source = topic("canary")
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    lines: list[str] = []

    class Logger:
        def log(self, _level: int, _template: str, *about: str) -> None:
            lines.append(about[-1])

    def topic_id() -> str:
        return str(admin.describe_topics(TopicCollection([source]))[source].result(PATIENCE_S).topic_id)

    def changed(to: str) -> bool:
        text = re.compile(rf"Topic {source} changed id from \S+ to {re.escape(to)}$")
        return any(map(text.search, lines))

    def first_record(offset: int) -> int | None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            one = consumer.poll(0.2)
            if one is not None and one.error() is None and (one.offset() or 0) >= offset:
                return one.offset()
        return None

    produce_plain(bootstrap, source, [b"former"] * 10)
    config = {"bootstrap.servers": bootstrap, "group.id": unique("canary"), "debug": "metadata"}
    consumer = Consumer({**config, "auto.offset.reset": "error", "logger": Logger()})
    place = [TopicPartition(source, 0, 0)]
    consumer.assign(place)
    assert first_record(9) == 9
    former = topic_id()
    assert changed(former)

    consumer.pause(place)  # it would stop at the end of a log that is not filled yet
    recreate_topic(bootstrap, source)
    produce_plain(bootstrap, source, [b"new"] * 20)
    consumer.resume(place)
    assert first_record(10) == 10
    assert changed(topic_id())
    consumer.close()


def test_exception_of_a_signal_handler_inside_a_constructor_is_replaced_by_a_type_error() -> None:
    """Else `eos.base.threads.made_beside` can go."""
    armed, replaced = False, False

    def handler(*_: object) -> None:
        if armed:
            raise InterruptedError

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for attempt in range(40_000):  # 27 of 4,000
            armed = True
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.00002 + attempt % 40 / 200_000)
                AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
            except TypeError as error:
                replaced = "as type unicode string" in str(error)
            except (InterruptedError, SystemError):  # where it came elsewhere, or in the destructor
                pass
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            if replaced:
                return
    finally:
        signal.signal(signal.SIGALRM, before)
    pytest.fail("never")

"""Where logs end, asked of a broker that does not answer: a reason to ask again, never an offset."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from eos import retry
from eos.errors import RetriableError
from eos.kafka.admin import Admin, Mark
from eos.kafka.topics import add_partitions
from eos.offsets import Partition
from eos.testing.proxy.frames import ApiKey
from eos.testing.proxy.hold_proxy import HoldProxy
from tests.conftest import NewTopic
from tests.support.observer import PlainRecord, produce_plain
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

ASKED_AGAIN_S = 0.9  # librdkafka looks for topics' leaders every 1,000 ms


@pytest.fixture
def partition(bootstrap: str, topic: NewTopic) -> Partition:
    asked = Partition(topic("asked", 1), 0)
    produce_plain(bootstrap, asked.topic, [PlainRecord(b"v", b"k", 0)] * 3)
    return asked


def test_a_question_without_an_answer_in_time_may_be_asked_again(
    proxy: HoldProxy, partition: Partition
) -> None:
    """librdkafka answers it by -1001, without an error: a job ended by that, with exit code 1."""
    admin = Admin({"bootstrap.servers": proxy.bootstrap_servers})
    for mark, offset in ((Mark.START, 0), (Mark.LAST_STABLE, 3), (Mark.HIGH_WATERMARK, 3)):
        assert admin.offsets_at(mark, [partition], PATIENCE_S) == {partition: offset}
        held = proxy.hold(ApiKey.LIST_OFFSETS)
        with pytest.raises(RetriableError, match="no answer in time"):
            admin.offsets_at(mark, [partition], 1.0)
        held.release()


@pytest.mark.timing
def test_clients_that_are_asked_at_once_answer_at_once(bootstrap: str, partition: Partition) -> None:
    """Of 100 that were asked in their first 3 ms, 6 to 25 took 1 to 3 s: first offsets, and the plans of Spark's runs."""
    for attempt in range(150):
        admin = Admin({"bootstrap.servers": bootstrap})
        time.sleep(attempt % 6 / 1_000)
        began = time.monotonic()
        assert admin.offsets_at(Mark.HIGH_WATERMARK, [partition], PATIENCE_S) == {partition: 3}
        assert time.monotonic() - began < ASKED_AGAIN_S


def test_a_client_that_never_connects_says_so_in_its_time(proxy: HoldProxy, partition: Partition) -> None:
    held = proxy.hold(ApiKey.API_VERSIONS)
    admin = Admin({"bootstrap.servers": proxy.bootstrap_servers})
    began = time.monotonic()
    with pytest.raises(RetriableError, match="_TIMED_OUT"):
        admin.offsets_at(Mark.START, [partition], 1.5)
    assert time.monotonic() - began < PATIENCE_S / 4
    held.release()
    answer = retry.ask(
        lambda slice_s: admin.offsets_at(Mark.START, [partition], slice_s), timeout_s=PATIENCE_S
    )
    assert answer == {partition: 0}


ASKED_BY_ANOTHER = """
import sys
from eos import retry
from eos.kafka.admin import Admin, Mark
from eos.offsets import Partition

partition = Partition(sys.argv[2], 0)
for _ in range(5):
    admin = Admin({"bootstrap.servers": sys.argv[1]})
    print(retry.ask(lambda s: admin.offsets_at(Mark.HIGH_WATERMARK, [partition], s), timeout_s=60)[partition])
"""


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_broker_that_names_no_broker_ends_no_process(
    proxy: HoldProxy, partition: Partition, nth: int
) -> None:
    """One broker says so while it is fenced, after a pause; to an answer that names no topic either, librdkafka has none."""
    proxy.edit_reply(
        ApiKey.METADATA,
        lambda frame, answer: frame.with_no_brokers(answer),
        where=lambda frame: partition.topic.encode() not in frame.payload,
        nth=nth,
        times=3,
    )
    ended = subprocess.run(
        [sys.executable, "-c", ASKED_BY_ANOTHER, proxy.bootstrap_servers, partition.topic],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout.split()) == (0, ["3"] * 5), ended.stderr[-500:]


def test_an_answer_that_did_not_come_is_left_out(proxy: HoldProxy, partition: Partition) -> None:
    admin = Admin({"bootstrap.servers": proxy.bootstrap_servers})
    held = proxy.hold(ApiKey.LIST_OFFSETS)
    asked = admin.ask_offsets_at(Mark.LAST_STABLE, [partition], 1.0)
    deadline = time.monotonic() + PATIENCE_S
    while not all(future.done() for future in asked._futures.values()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert asked.answers() == {}
    held.release()


def test_a_partition_that_was_added_since_the_first_question_is_answered_for(
    bootstrap: str, partition: Partition
) -> None:
    """librdkafka's admin client does not learn of it by itself: the watch for stalled partitions was blind for such ones."""
    client = {"bootstrap.servers": bootstrap}
    admin = Admin(client)
    assert admin.offsets_at(Mark.LAST_STABLE, [partition], PATIENCE_S) == {partition: 3}
    add_partitions(client, partition.topic, 2)
    added = Partition(partition.topic, 1)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            assert admin.offsets_at(Mark.LAST_STABLE, [partition, added], 1.0) == {partition: 3, added: 0}
        except RetriableError:
            assert time.monotonic() < deadline, "it is never answered"
            time.sleep(0.2)
        else:
            return


@pytest.mark.parametrize("timeout_s", [0.0, 0.001])
def test_a_question_without_time_is_answered_all_the_same(
    bootstrap: str, partition: Partition, timeout_s: float
) -> None:
    """librdkafka corrupts its heap where such a question times out at once."""
    admin = Admin({"bootstrap.servers": bootstrap})
    late = 0
    for _ in range(200):
        try:
            assert admin.offsets_at(Mark.HIGH_WATERMARK, [partition], timeout_s) == {partition: 3}
        except RetriableError:  # it has a second, which a busy machine may take
            late += 1
    assert late < 100


# The collector runs while librdkafka's thread hands over the answer, and while the main thread sleeps.
DROPPING = """
import gc, sys, time
from eos.kafka.admin import Admin, Mark
from eos.offsets import Partition

partitions = [Partition(sys.argv[2], 0)]

def ask_and_drop():
    admin = Admin({"bootstrap.servers": sys.argv[1]})
    time.sleep(0.2)
    asked = admin.ask_offsets_at(Mark.HIGH_WATERMARK, partitions, 5.0)
    if sys.argv[3] == "with the error that it raised":
        try:
            raise ValueError
        except ValueError as error:
            kept = error  # and the error keeps this frame
    return asked

gc.disable()
gc.collect()
gc.freeze()
gc.set_threshold(1, 1, 1)
for _ in range(5):
    asked = ask_and_drop()
    gc.enable()
    time.sleep(0.2)
    gc.disable()
print("alive", len(asked.answers()))
"""


@pytest.mark.parametrize("dropped", ["alone", "with the error that it raised"])
def test_admin_that_is_dropped_with_a_question_under_way_ends_no_process(
    bootstrap: str, partition: Partition, dropped: str
) -> None:
    """librdkafka ends the process by an assertion where a client is destroyed in the thread that hands over its answers."""
    ended = subprocess.run(
        [sys.executable, "-c", DROPPING, bootstrap, partition.topic, dropped],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout[:5]) == (0, "alive"), ended.stderr[-500:]

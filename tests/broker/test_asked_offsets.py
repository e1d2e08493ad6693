"""Where logs end, asked of a broker that does not answer: a reason to ask again, never an offset."""

from __future__ import annotations

import time

import pytest

from eos.errors import RetriableError
from eos.kafka.admin import Admin, Mark
from eos.offsets import Partition
from tests.conftest import NewTopic
from tests.support.hold_proxy import HoldProxy
from tests.support.kafka_frames import ApiKey
from tests.support.observer import PlainRecord, produce_plain

pytestmark = pytest.mark.broker

WAIT_S = 20.0


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
        assert admin.offsets_at(mark, [partition], WAIT_S) == {partition: offset}
        held = proxy.hold(ApiKey.LIST_OFFSETS)
        with pytest.raises(RetriableError, match="no answer in time"):
            admin.offsets_at(mark, [partition], 1.0)
        held.release()


def test_an_answer_that_did_not_come_is_left_out(proxy: HoldProxy, partition: Partition) -> None:
    admin = Admin({"bootstrap.servers": proxy.bootstrap_servers})
    held = proxy.hold(ApiKey.LIST_OFFSETS)
    asked = admin.ask_offsets_at(Mark.LAST_STABLE, [partition], 1.0)
    deadline = time.monotonic() + WAIT_S
    while not all(future.done() for future in asked._futures.values()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert asked.answers() == {}
    held.release()


@pytest.mark.parametrize("timeout_s", [0.0, 0.001])
def test_a_question_without_time_is_answered_all_the_same(
    bootstrap: str, partition: Partition, timeout_s: float
) -> None:
    """librdkafka corrupts its heap where such a question times out at once."""
    admin = Admin({"bootstrap.servers": bootstrap})
    for _ in range(200):
        assert admin.offsets_at(Mark.HIGH_WATERMARK, [partition], timeout_s) == {partition: 3}

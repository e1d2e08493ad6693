"""What librdkafka's answers about offsets become."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition

from eos.kafka.positions import metadata_of


class Garbled:
    @property
    def metadata(self) -> str:
        return b"of another program\xff".decode()


@pytest.mark.parametrize(
    ("found", "metadata"),
    [
        (TopicPartition("in", 0, 5), ""),
        (TopicPartition("in", 0, 5, "said"), "said"),
        pytest.param(Garbled(), "", id="bytes behind its end that are no text"),
    ],
)
def test_metadata_that_cannot_be_read_is_none_and_ends_no_process(
    found: TopicPartition, metadata: str
) -> None:
    assert metadata_of(found) == metadata

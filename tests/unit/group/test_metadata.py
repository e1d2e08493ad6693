"""What librdkafka writes of a member of a group: whether a coordinator would check offsets that come with it."""

from __future__ import annotations

import struct

import pytest
from confluent_kafka import Consumer

from eos.errors import ConfigError
from eos.kafka.group_offsets import GroupMetadata


def written(generation: int, member: bytes) -> GroupMetadata:
    return GroupMetadata(
        "a group", b"CGMDv2:" + struct.pack("=i", generation) + b"a group\0" + member + b"\0\1"
    )


@pytest.mark.parametrize("generation", [0, 1, 10, 0x0A0A0A0A])
def test_a_generation_and_a_member_are_named(generation: int) -> None:
    assert written(generation, b"rdkafka-1").names_a_member


@pytest.mark.parametrize(("generation", "member"), [(-1, b"rdkafka-1"), (7, b""), (-1, b"")])
def test_without_either_of_them_it_names_no_member(generation: int, member: bytes) -> None:
    assert not written(generation, member).names_a_member


def test_a_consumer_that_has_not_joined_is_no_member() -> None:
    options = {"bootstrap.servers": "localhost:1", "group.id": "g", "group.instance.id": "a", "log_level": 0}
    consumer = Consumer(options)
    try:
        assert not GroupMetadata("g", consumer.consumer_group_metadata()).names_a_member
    finally:
        consumer.close()


@pytest.mark.parametrize("opaque", [b"CGMDv3:\0\0\0\1g\0m\0\1", b"", None])
def test_an_unknown_form_is_refused(opaque: object) -> None:
    with pytest.raises(ConfigError, match=r"unknown form.* Fix: a version of confluent-kafka"):
        _ = GroupMetadata("g", opaque).names_a_member

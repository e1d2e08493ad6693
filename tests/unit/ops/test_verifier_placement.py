"""Where keys belong, by the partitioner of the program that wrote them."""

from __future__ import annotations

import pytest

from eos.errors import UsageError
from eos.ops.verifier.placement import Placement, partition_of
from eos.records import OutputRecord


def test_outputs_of_librdkafkas_default_partitioner_are_named_and_accepted_with_the_option() -> None:
    keys = [b"key %d" % number for number in range(300)]
    found = {key: partition_of(key, 4, "consistent_random") for key in keys}
    assert partition_of(b"123456789", 1 << 32, "consistent_random") == 0xCBF43926  # CRC-32's check value
    own = Placement({"out": 4}, {})
    for key, partition in found.items():
        if own.wanted(OutputRecord("out", b"", key)) != partition:
            own.is_astray("out", key, partition)
    assert "--partitioner consistent_random" in own.explanation("out")
    told = Placement({"out": 4}, {}, "consistent_random")
    assert all(told.wanted(OutputRecord("out", b"", key)) == partition for key, partition in found.items())
    assert told.wanted(OutputRecord("out", b"", b"")) is None


def test_an_unknown_partitioner_is_refused() -> None:
    with pytest.raises(UsageError, match="murmur2_random, consistent_random"):
        Placement({"out": 4}, {}, "round-robin")

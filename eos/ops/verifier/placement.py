"""Where a record belongs: the partition that its output names, or that the hash of its key chooses.

The hash is murmur2, as in Java's default partitioner and in librdkafka's ``murmur2_random``, which eos always writes
with. It is computed here, not by the client: a judge that asks the writer does not see the writer's errors. A record
without a key may be in any partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from zlib import crc32

from eos.errors import UsageError
from eos.ops.verifier.identities import as_bytes
from eos.records import OutputRecord

_SEED = 0x9747B28C
_M = 0x5BD1E995
_32 = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF
_KEYS_REMEMBERED = 65_536


@lru_cache(_KEYS_REMEMBERED)
def murmur2(key: bytes) -> int:
    """``org.apache.kafka.common.utils.Utils.murmur2``, as an unsigned 32-bit number."""
    whole = len(key) & ~3
    h = _SEED ^ len(key)
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * _M & _32
        k = (k ^ k >> 24) * _M & _32
        h = (h * _M & _32) ^ k
    if rest := key[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * _M & _32
    h = (h ^ h >> 13) * _M & _32
    return h ^ h >> 15


# librdkafka's names. An empty key has no place of its own with its default.
PARTITIONERS: Mapping[str, Callable[[bytes, int], int]] = {
    "murmur2_random": lambda key, partitions: (murmur2(key) & _POSITIVE) % partitions,
    "consistent_random": lambda key, partitions: crc32(key) % partitions,
}
OWN = "murmur2_random"


def require_partitioner(name: str) -> str:
    """The name, if it is a partitioner's.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in PARTITIONERS:
        raise UsageError(f"partitioner {name!r} is not known. Fix: one of {', '.join(PARTITIONERS)}")
    return name


def partition_of(key: bytes, partitions: int, partitioner: str = OWN) -> int:
    """The partition of a key in a topic of so many partitions."""
    return PARTITIONERS[partitioner](key, partitions)


class Placement:
    """The partitions that the outputs of a job belong in.

    Args:
        partitions: of each output topic, how many it has now.
        grown_from: of topics that were given more partitions after their first records: how many they had before.
            Kafka moves no record then, so a key is right where any count from there to the present one puts it.
        partitioner: by which the outputs were written; eos writes with murmur2_random, as Java does.

    Raises:
        UsageError: there is no such partitioner, or ``grown_from`` names no output topic, or more partitions than it has.
    """

    def __init__(
        self, partitions: Mapping[str, int], grown_from: Mapping[str, int], partitioner: str = OWN
    ) -> None:
        self._partitioner = require_partitioner(partitioner)
        for topic, count in grown_from.items():
            if topic not in partitions:
                raise UsageError(f"grown_from names {topic!r}, which is no output topic of the job")
            if not 1 <= count <= partitions[topic]:
                raise UsageError(
                    f"grown_from: {topic} has {partitions[topic]} partitions now, so it was not grown from {count}"
                )
        self._counts = {
            topic: range(grown_from.get(topic, count), count + 1) for topic, count in partitions.items()
        }
        # Per topic with misplaced records, the smaller counts that explain every record seen there.
        self._explained: dict[str, set[int]] = {}
        # Likewise, the other partitioners.
        self._fitting: dict[str, set[str]] = {}

    def wanted(self, output: OutputRecord) -> int | None:
        """The one partition that an output belongs in; None if there are several."""
        if output.partition is not None:
            return output.partition
        if self._is_anywhere(key := as_bytes(output.key)) or key is None:
            return None
        places = self._places(output.topic, key)
        return next(iter(places)) if len(places) == 1 else None

    def is_astray(self, topic: str, key: bytes | None, partition: int) -> bool:
        """Whether a record found is where no count of partitions puts its key, in a topic that was grown.

        In other topics, and for outputs that name their partition, `wanted` gives the one place.
        """
        if key is None or self._is_anywhere(key):
            return False
        places = self._places(topic, key)
        if partition not in places:
            self._explain(topic, key, partition)
        return len(places) > 1 and partition not in places

    def explanation(self, topic: str) -> str:
        """Whether the topic's misplaced records are where another partitioner, or fewer partitions, had put them."""
        if fitting := self._fitting.get(topic):
            other = min(fitting)
            what = (
                "librdkafka's default partitioner"
                if other == "consistent_random"
                else "Java's and eos's partitioner"
            )
            return (
                f". All misplaced records of this topic are where {what} ({other}) puts them. Fix, if their writer uses it: "
                f"partitioner (--partitioner {other}); or let it write with {self._partitioner}, so that equal keys meet"
            )
        if not (counts := self._explained.get(topic)):
            return ""
        count = max(counts)
        return (
            f". All misplaced records of this topic are where a topic of {count} partition{'s' if count > 1 else ''} has "
            f"them. Fix, if it was grown from {count}: grown_from (--grown-from {topic}={count})"
        )

    def _explain(self, topic: str, key: bytes, partition: int) -> None:
        counts = self._explained.setdefault(topic, set(range(1, self._counts[topic].start)))
        counts -= {count for count in counts if partition_of(key, count, self._partitioner) != partition}
        fitting = self._fitting.setdefault(topic, set(PARTITIONERS) - {self._partitioner})
        now = self._counts[topic][-1]
        fitting -= {one for one in fitting if partition_of(key, now, one) != partition}

    def _is_anywhere(self, key: bytes | None) -> bool:
        return key is None or (not key and self._partitioner == "consistent_random")

    def _places(self, topic: str, key: bytes) -> set[int]:
        return {partition_of(key, count, self._partitioner) for count in self._counts[topic]}

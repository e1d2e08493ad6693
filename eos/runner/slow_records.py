"""Slow records: a record whose transform takes longer than ownership.max_poll_interval_ms would be read again for ever."""

from __future__ import annotations

from eos.errors import ConfigError
from eos.offsets import Partition
from eos.records import InputBatch
from eos.settings import Settings


class SlowRecords:
    """Finds a record that this member cannot commit: it was transformed alone twice, too slowly each time.

    The group drops a member that has not fetched for ``ownership.max_poll_interval_ms``, and librdkafka gives its partitions
    up (https://github.com/confluentinc/librdkafka/blob/master/INTRODUCTION.md, "Consumer groups"). So the record is read
    again, by this member or another one. A single slow time may be an outage of what the transform asks, and several records
    in a fetch become one by themselves; so neither ends the job.
    """

    def __init__(self, settings: Settings) -> None:
        ownership = settings.ownership
        self._limit_ms = ownership.max_poll_interval_ms if ownership.mode == "group" else None
        self._late: dict[Partition, int] = {}  # offset of the last one that was too slow

    def took(self, batch: InputBatch, seconds: float) -> None:
        """A batch was transformed, in so many seconds.

        Raises:
            ConfigError: it is a record alone, and took longer than the group waits for the second time.
        """
        if self._limit_ms is None or len(batch) != 1 or seconds * 1000 < self._limit_ms:
            return
        partition, offset = Partition(batch.topics[0], batch.partitions[0]), batch.offsets[0]
        if self._late.get(partition) == offset:
            raise ConfigError(
                f"{partition} offset {offset}: the transform took {seconds:.1f} s for this record, for the second time, and "
                f"ownership.max_poll_interval_ms is {self._limit_ms}: the group drops a member that does not fetch for so "
                "long, so the record was not committed and came again. Fix: a value of ownership.max_poll_interval_ms that "
                f"no record needs (for this one {2 * round(seconds * 1000)}), or a quicker transform"
            )
        self._late[partition] = offset

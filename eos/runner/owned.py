"""The shards that a process owns: one of a group, or one of each partition that is its own."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from eos.errors import ConfigError, RetriableError
from eos.group.topics import known_partitions
from eos.job import Looping
from eos.kafka.admin import Admin
from eos.offsets import Partition
from eos.settings import Settings
from eos.shards import OrdinalShard, PartitionShard, Shard

METADATA_S = 15.0
# Of the clients of one partition in mode 'partition', measured at 10, 50 and 100 of them (docs/PERFORMANCE.md).
_PARTITION_MB, _PARTITION_THREADS, _PARTITION_FILES = 3, 15, 21
_LOOK_S = 5.0  # after added input partitions

log = logging.getLogger("eos.runner.worker")


def shards_of(job: Looping, settings: Settings) -> list[Shard]:
    """The shards that this process owns, by ownership.mode.

    Raises:
        ConfigError: a partition that was given does not exist or is no input of the job.
    """
    existing = (
        []
        if settings.ownership.mode == "group"
        else known_partitions(Admin.of(settings), job.inputs, timeout_s=METADATA_S)
    )
    return owned(job, settings, existing)


def owned(job: Looping, settings: Settings, existing: Sequence[Partition]) -> list[Shard]:
    """As `shards_of`, of partitions that are known to exist."""
    known, ownership = job.identity(settings), settings.ownership
    if known.mode == "group":
        return [OrdinalShard(known.app, known.group, settings.ordinal)]
    given = ownership.owned_partitions
    if unknown := sorted(set(given) - set(existing)):
        raise ConfigError(
            f"ownership.partitions names {', '.join(map(str, unknown))}, which the inputs "
            f"{', '.join(job.inputs)} do not have"
        )
    mine: Sequence[Partition] = given or [p for p in existing if _is_mine(p, settings)]
    return [PartitionShard(known.app, known.group, p) for p in mine]


def refuse_too_many(settings: Settings, count: int) -> None:
    """Refuse more partitions than one process may take: each has clients of its own.

    A thousand took 5 GB and more than 4,000 threads, and had committed nothing after a minute.
    """
    most = settings.ownership.max_partitions
    if count <= most:
        return
    times, workers = -(-count // most), settings.workers.count
    raise ConfigError(
        f"this process has {count:,} partitions, and ownership.max_partitions = {most:,}: each of them has clients of its own, "
        f"{count:,} take some {count * _PARTITION_MB:,} MB, {count * _PARTITION_THREADS:,} threads and "
        f"{count * _PARTITION_FILES:,} file descriptors. Fix: ownership.mode = 'group', where one client reads them all (with "
        f"ownership.adopt_offsets = true for one start); or workers.count = {workers * times} instead of {workers}, or {times} times "
        "the instances (stop them all before); or a higher ownership.max_partitions, where the machine has all that"
    )


def _is_mine(partition: Partition, settings: Settings) -> bool:
    return partition.number % (settings.ownership.instances or 1) == settings.ordinal


class AddedPartitions:
    """Finds input partitions that were added while the process runs, and which of them this process owns.

    The owner of a partition by instances does not depend on how many partitions there are (p mod instances), so a new one
    has no owner yet, and no other one moves.
    """

    def __init__(self, job: Looping, settings: Settings, known: Iterable[Partition]) -> None:
        self._job = job
        self._settings = settings
        self._known = set(known)
        self._admin = Admin.of(settings)

    def __call__(self) -> list[Shard]:
        """The shards of new partitions that this process owns.

        Raises:
            ConfigError: it would have more than it may.
        """
        try:
            existing = self._admin.partitions(self._job.inputs, _LOOK_S)
        except RetriableError:
            return []  # brokers are away: asked again
        new = [p for p in existing if p not in self._known]
        self._known.update(new)
        if not new:
            return []
        if self._settings.ownership.owned_partitions:
            log.warning(
                "input partitions were added: %s. ownership.partitions of this instance does not have them, so it does not "
                "read them. Fix: add each to the list of one instance, and start that one again",
                ", ".join(map(str, new)),
            )
            return []
        mine = [p for p in new if _is_mine(p, self._settings)]
        refuse_too_many(self._settings, sum(_is_mine(p, self._settings) for p in self._known))
        log.warning(
            "input partitions were added: %s. Of these this instance takes up %s (p mod %d = %d)",
            ", ".join(map(str, new)),
            ", ".join(map(str, mine)) or "none",
            self._settings.ownership.instances or 1,
            self._settings.ordinal,
        )
        known = self._job.identity(self._settings)
        return [PartitionShard(known.app, known.group, p) for p in mine]

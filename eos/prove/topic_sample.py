"""Topic sample: the newest records of topics of another cluster, to be fed to a job. That cluster is only read, and nothing is committed there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from eos.base.deadline import Deadline
from eos.errors import ConfigError, UnavailableError
from eos.kafka.admin import Mark
from eos.offsets import Partition
from eos.ops.verifier.logs import LogReader, Range
from eos.records import OutputRecord
from eos.settings import Settings

_ANSWER_S = 30.0
_READ_S = 600.0


def sampled_records(
    settings: Settings, group: str, topics: Mapping[str, str], *, limit: int, partitions: int
) -> list[OutputRecord]:
    """The newest committed records of topics, up to their ends of now: keys, values, headers and timestamps as they are.

    The records of a partition stay in one partition, in their order.

    Args:
        settings: how to reach the cluster.
        group: one that may be read there; nothing is asked of it, or committed to it.
        topics: each with the input topic that its records are for.
        limit: how many offsets of each topic are read at most, as many of each partition.
        partitions: of an input topic.

    Raises:
        ConfigError: a topic does not exist or has no record, or nothing says where the cluster is.
        UnavailableError: the cluster does not answer.
    """
    try:
        with LogReader(settings, group, Deadline(_ANSWER_S)) as reader:
            ranges = {topic: _ranges(reader, topic, limit) for topic in topics}
    except UnavailableError as error:
        raise UnavailableError(
            f"--input-topic: the cluster at {settings.kafka.bootstrap_servers} did not say in {_ANSWER_S:.0f} s where "
            f"{', '.join(topics)} ends: {error}. Fix: kafka.bootstrap_servers and the login, of the cluster that has the topic"
        ) from error
    found: list[OutputRecord] = []
    with LogReader(settings, group, Deadline(_READ_S)) as reader:
        for topic, of_topic in ranges.items():
            records = list(_records(reader, of_topic, topics[topic], partitions))
            if not records:
                raise ConfigError(
                    f"--input-topic {topic}: it has no committed record. Fix: a topic that has some, or --input"
                )
            found += records
    return found


def _ranges(reader: LogReader, topic: str, limit: int) -> dict[Partition, Range]:
    partitions = reader.partitions([topic])
    starts, ends = reader.offsets_at(Mark.START, partitions), reader.offsets_at(Mark.LAST_STABLE, partitions)
    share = max(1, limit // len(partitions))
    return {p: Range(max(starts[p], ends[p] - share), ends[p]) for p in partitions}


def _records(
    reader: LogReader, ranges: Mapping[Partition, Range], topic: str, partitions: int
) -> Iterator[OutputRecord]:
    for one in reader.records(ranges):
        yield OutputRecord(
            topic,
            one.value,
            one.key,
            one.headers,
            one.timestamp_ms or None,  # 0 is what a producer takes for "now"
            one.partition % partitions,
        )

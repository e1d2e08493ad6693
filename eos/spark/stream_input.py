"""The input of a streaming query, held against the topics and logs that the batches before were read from.

Spark's checkpoint stores offsets by the topic's name. A topic that was deleted and created anew, or a log that was
truncated and has grown again, is read on from the old offset, and the records below it are never processed. So the ledger
keeps *marks*: in the transaction that writes shard 0's entry, its group commits the offsets behind the batch on the input
partitions themselves, each with the topic's id and the leader epoch. Kafka drops them together with a deleted topic, so an
entry also says how many there are: marks that are gone are as telling as marks with another id.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

from eos.errors import OffsetGapError, UsageError
from eos.group.committed import refuse_truncated
from eos.group.topic_ids import refuse_recreated, stored_topic_ids
from eos.kafka.admin import Mark
from eos.kafka.group_offsets import Committed, stored_positions
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings
from eos.spark.checkpoint import Checkpoint
from eos.spark.input_logs import InputLogs

_HEAD_LINES = 2  # of a batch's file: the format's version, and what is not about a source


def planned_offsets(checkpoint: Checkpoint, batch: int, topics: Sequence[str]) -> dict[Partition, int]:
    """Per input partition, where a batch ends, as Spark has noted it before the batch was begun.

    Raises:
        UsageError: the query does not read one of the topics.
        ConfigError: the checkpoint cannot be reached.
    """
    found: dict[Partition, int] = {}
    for line in (checkpoint.text(f"offsets/{batch}") or "").splitlines()[_HEAD_LINES:]:
        source = json.loads(line) if line.startswith("{") else {}
        for topic in topics:
            ends = source.get(topic)
            for number, end in ends.items() if isinstance(ends, dict) else ():
                partition = Partition(topic, int(number))  # read twice in one query: the further one
                found[partition] = max(end, found.get(partition, 0))
    if unread := set(topics) - {partition.topic for partition in found}:
        raise UsageError(
            f"the sink's inputs name {', '.join(sorted(unread))}, of which batch {batch} reads nothing: "
            f"{checkpoint}/offsets/{batch} has no such topic. Fix: inputs=[…] are the topics that the query reads on the "
            "cluster that it writes to"
        )
    return found


def checked_input(
    settings: Settings,
    group: str,
    ends: Mapping[Partition, int],
    read_marks: Callable[[], Mapping[Partition, Committed]],
    expected: Iterable[Partition],
) -> OffsetVector:
    """The marks of a batch, once its topics and logs are shown to be those of the marks before.

    Args:
        settings: how to reach the cluster.
        group: whose marks they are.
        ends: where the batch ends.
        read_marks: reads the marks that are stored for its partitions.
        expected: the partitions that must have one.

    Raises:
        OffsetGapError: a topic was deleted and created anew, or a log was truncated.
        UnavailableError: the cluster did not answer in time.
    """
    logs = InputLogs(settings)
    # The ids first: what is read after them counts in these topics, or the commit is refused.
    topic_ids = logs.ids({partition.topic for partition in ends})
    marks = read_marks()
    refuse_recreated(stored_topic_ids(marks, with_more=True), topic_ids)
    if gone := sorted(set(expected) - marks.keys()):
        raise OffsetGapError(
            f"{', '.join(map(str, gone))}: the ledger has a mark for each partition of the batch before, and none of "
            "these. Kafka drops it together with a topic that is deleted, so the topic was deleted and created anew."
        )
    stable = logs.at(Mark.LAST_STABLE, ends)
    # In the epoch that the mark was made in, the leader has only appended; only another one may have truncated its log.
    doubtful = {p: one for p, one in marks.items() if one.leader_epoch not in (None, stable.epoch_of(p))}
    refuse_truncated(settings, group, stored_positions(doubtful), timeout_s=settings.open_timeout_s)
    epochs = {p: epoch for p in ends if (epoch := stable.epoch_of(p)) is not None}
    return OffsetVector(ends, epochs, topic_ids)

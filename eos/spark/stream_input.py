"""The input of a streaming query, held against the topics and logs that the batches before were read from.

Spark's checkpoint stores offsets by the topic's name. A topic that was deleted and created anew, or a log that was
truncated and has grown again, is read on from the old offset, and the records below it are never processed. So the ledger
keeps *marks*: in the transaction that writes shard 0's entry, its group commits the offsets behind the batch on the input
partitions themselves, each with the topic's id and the leader epoch. Kafka drops them together with a deleted topic, so an
entry also says how many there are: marks that are gone are as telling as marks with another id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from eos.errors import OffsetGapError, UsageError
from eos.group.committed import refuse_truncated
from eos.group.topic_ids import refuse_recreated, stored_topic_ids
from eos.kafka.admin import Mark
from eos.kafka.group_offsets import Committed, stored_positions
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings
from eos.spark.checkpoint import Checkpoint, RunningQuery
from eos.spark.input_logs import InputLogs
from eos.spark.jvm_plans import items, kind_of
from eos.spark.ledger import LedgerChangedError, LedgerError

_HEAD_LINES = 2  # of a batch's file: the format's version, and what is not about a source
_READS = "StreamingDataSourceV2ScanRelation"  # of a source with records in this batch; else an empty relation stands there


class RunningInput(NamedTuple):
    """Where the batch that runs begins and ends in its input."""

    starts: Mapping[Partition, int]
    ends: Mapping[Partition, int]

    @property
    def digest(self) -> str:
        """Another one for other offsets; the same for a batch that is run again."""
        places = [
            (*partition, self.starts.get(partition), self.ends[partition]) for partition in sorted(self.ends)
        ]
        return hashlib.blake2b(json.dumps(places).encode(), digest_size=8).hexdigest()


def running_input(query: RunningQuery, batch: int, topics: Sequence[str]) -> RunningInput:
    """Where the batch that runs begins and ends, by the plan that Spark runs.

    Its file in the checkpoint need not say the same: Spark writes it as "look, then rename", which is no step of its own on
    an object store, so of two drivers that plan a batch the later one's file may stay.

    Raises:
        LedgerChangedError: the file says other ends.
        UsageError: the query does not read one of the topics.
        ConfigError: the checkpoint cannot be reached.
    """
    planned = planned_offsets(query.checkpoint, batch, topics)
    starts: dict[Partition, int] = {}
    ends: dict[Partition, int] = {}
    for node in _nodes(query.execution.logical()):
        if kind_of(node) == _READS:
            for found, offset in ((starts, node.startOffset()), (ends, node.endOffset())):
                if offset.isDefined():
                    _add(found, json.loads(offset.get().json()), topics)
    if other := sorted(p for p, end in ends.items() if planned.get(p) != end):
        first = other[0]
        raise LedgerChangedError(
            f"batch {batch} ends at {first} offset {ends[first]} here, and {query.checkpoint}/offsets/{batch} says "
            f"{planned.get(first)}: another driver works with this checkpoint, and has planned the batch too. Nothing of it was "
            "written here. Fix: stop one of the two, and start the other one again"
        )
    return RunningInput(planned | starts, planned | ends)


def refuse_gap(
    checkpoint: Checkpoint,
    batch: int,
    marks: Mapping[Partition, Committed],
    expected: Mapping[Partition, int],
) -> None:
    """Refuse to go on where the last batch that is written did not end: what lies between would never be processed, or twice.

    Args:
        checkpoint: the query's.
        batch: the last one that is written.
        marks: where it ended, as it was committed with it.
        expected: where it ended, as the batch that runs takes it.

    Raises:
        LedgerError: says where, and how the checkpoint is put right.
    """
    if other := sorted(p for p, mark in marks.items() if p in expected and mark.offset != expected[p]):
        first = other[0]
        ends: dict[str, dict[str, int]] = {}
        for partition in sorted({*marks, *expected}):
            end = marks[partition].offset if partition in marks else expected[partition]
            ends.setdefault(partition.topic, {})[str(partition.number)] = end
        raise LedgerError(
            f"batch {batch} was written up to {first} offset {marks[first].offset}, and this query takes it for written up to "
            f"{expected[first]}: what lies between would be {'skipped' if marks[first].offset < expected[first] else 'repeated'}. Two "
            f"drivers have planned the batch in this checkpoint, or a file of it was restored. Fix: with every driver stopped, put "
            f"{checkpoint}/offsets/{batch} right, whose last lines are to say {json.dumps(ends)}, and remove the files of later "
            "batches there: see 'Two drivers of one query' in docs/RUNBOOK.md"
        )


def planned_offsets(checkpoint: Checkpoint, batch: int, topics: Sequence[str]) -> dict[Partition, int]:
    """Per input partition, where a batch ends, as Spark has noted it before the batch was begun.

    Raises:
        UsageError: the query does not read one of the topics.
        ConfigError: the checkpoint cannot be reached.
    """
    found: dict[Partition, int] = {}
    for line in (checkpoint.text(f"offsets/{batch}") or "").splitlines()[_HEAD_LINES:]:
        # In format 2 the name of the source stands before its offsets; "-" is a source without any.
        _, brace, offsets = line.partition("{")
        if brace:
            _add(found, json.loads(brace + offsets), topics)
    if unread := set(topics) - {partition.topic for partition in found}:
        raise UsageError(
            f"the sink's inputs name {', '.join(sorted(unread))}, of which batch {batch} reads nothing: "
            f"{checkpoint}/offsets/{batch} has no such topic. Fix: inputs=[…] are the topics that the query reads on the "
            "cluster that it writes to"
        )
    return found


def _add(found: dict[Partition, int], offsets: Mapping[str, Any], topics: Sequence[str]) -> None:
    """Add a source's offsets; of a partition that two sources of a query read, the further one."""
    for topic in topics:
        of_topic = offsets.get(topic)
        for number, offset in of_topic.items() if isinstance(of_topic, dict) else ():
            partition = Partition(topic, int(number))
            found[partition] = max(offset, found.get(partition, 0))


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in items(plan.children()):
        yield from _nodes(child)


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

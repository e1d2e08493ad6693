"""The tasks of a streaming query's batch: which input partition each one reads, and whether rows stay in them to the sink.

A sink may write a row in the task that has read it only if that task has every row of its input partition. Below a function for
foreachBatch are two physical plans: that of the frame which the function makes, over an RDD, and that of the query, which
is run as this RDD. Asked for is: both keep a row in its task (`eos.spark.analysis.row_wise`), the lower one over the one scan of
Kafka's source; each RDD takes its task i from task i of one other alone; and each task of the source reads a partition of its
own, to where the batch ends there. So neither an unknown operator nor a source that splits partitions (minPartitions) gets through.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from eos.offsets import Partition
from eos.spark.analysis.row_wise import SCAN, moved_by
from eos.spark.analysis.source_offsets import input_digest, places_of
from eos.spark.session.jvm import executed, inputs_of, items, kind_of, rdd_of

_KAFKA_SCAN = "org.apache.spark.sql.kafka010.KafkaSourceProvider$KafkaScan"
_KAFKA_TASK = "org.apache.spark.sql.kafka010.KafkaBatchInputPartition"
_ONE_TO_ONE = "OneToOneDependency"


@dataclass(frozen=True, slots=True)
class QueryTasks:
    """What the tasks of a batch read.

    Attributes:
        moved_by: what takes rows out of the task that reads them, by its name in Spark's UI, or splits a partition; "" if nothing
            does. Then the rest says:
        partitions: how many partitions the input has, also those with nothing new. A partition's place among them, sorted by
            topic and number, is its shard: whoever runs the batch again finds the same, as its end is in the checkpoint.
        by_task: the shard that each task reads.
        digest: another one for another input.
    """

    moved_by: str = ""
    partitions: int = 0
    by_task: tuple[int, ...] = ()
    digest: str = ""


def tasks_of(execution: Any) -> QueryTasks:
    """The tasks of a batch by Spark's IncrementalExecution of it. Nothing is read."""
    plan = execution.executedPlan()
    if operator := moved_by(plan, _is_kafka_scan):
        return QueryTasks(operator)
    [scan] = items(plan.collectLeaves())
    starts, ends = (places_of(json.loads(offset.json())) for offset in (scan.start(), scan.end()))
    place = {partition: number for number, partition in enumerate(sorted(ends))}
    found: list[int] = []
    for task in _first(execution.toRdd()).partitions():
        read = inputs_of(task)
        if len(read) != 1 or read[0].getClass().getName() != _KAFKA_TASK:
            return QueryTasks(SCAN)
        offsets = read[0].offsetRange()
        of = offsets.topicPartition()
        partition = Partition(of.topic(), of.partition())
        if ends.get(partition) != offsets.untilOffset() or place[partition] in found:
            return QueryTasks(SCAN)
        found.append(place[partition])
    return QueryTasks("", len(place), tuple(found), input_digest([(starts, ends)]))


def moved_above(rows: DataFrame, execution: Any) -> str:
    """What takes ``rows``, made of a batch, out of the tasks of its execution, as `QueryTasks.moved_by` says it."""
    batch = execution.toRdd()
    if operator := moved_by(executed(rows), lambda leaf: _reads(leaf, batch)):
        return operator
    mine, its = rdd_of(rows), _first(batch)
    return "" if _first(mine).id() == its.id() and len(mine.partitions()) == len(its.partitions()) else SCAN


# --- inside ----------------------------------------------------------------------------------------------


def _is_kafka_scan(leaf: Any) -> bool:
    return kind_of(leaf) == "MicroBatchScanExec" and leaf.scan().getClass().getName() == _KAFKA_SCAN


def _reads(leaf: Any, rdd: Any) -> bool:
    return kind_of(leaf) == "RDDScanExec" and leaf.rdd().id() == rdd.id()


def _first(rdd: Any) -> Any:
    """The RDD that this one is made of, task by task; itself where its tasks are made of others in any other way."""
    while len(below := items(rdd.dependencies())) == 1 and kind_of(below[0]) == _ONE_TO_ONE:
        rdd = below[0].rdd()
    return rdd

"""Log: what the cluster itself has written down: batches and markers, committed offsets, the coordinator's decisions.

Read from the brokers' files by Kafka's own tool, so that nothing of a client stands between them and the judgement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from eos.errors import UnavailableError
from eos.group.offset_record import OFFSETS_TOPIC
from eos.local import LocalKafka
from eos.offsets import Partition

DUMP_LOG_SEGMENTS = "kafka.tools.DumpLogSegments"
OFFSETS, TRANSACTIONS = OFFSETS_TOPIC, "__transaction_state"
COMMIT, ABORT = "COMMIT", "ABORT"
_TOOL_S = 600.0
_FIELD = re.compile(r"(\w+): (\S+)")
_KEY_AND_PAYLOAD = re.compile(r" key: (\{.*?\}\}) payload: (\{.*\})$")
_PREPARED = {2: True, 3: False}  # PrepareCommit, PrepareAbort


class Commit(NamedTuple):
    """An offset that a group has committed."""

    group: str
    partition: Partition
    offset: int


class Batch(NamedTuple):
    """A batch of a partition, or a marker. Producer id and epoch are -1 for a plain producer."""

    partition: Partition
    producer_id: int
    epoch: int
    base: int
    last: int
    transactional: bool
    marker: str = ""  # COMMIT or ABORT
    commits: tuple[Commit, ...] = ()  # in a partition of OFFSETS
    written_ms: int = 0  # of a marker, when the partition's leader has written it
    control: bool = False


class Decision(NamedTuple):
    """A transaction that the coordinator has decided to commit, or to abort."""

    producer_id: int
    began_ms: int
    committed: bool
    partitions: frozenset[Partition]
    decided_ms: int


class ClusterLog(NamedTuple):
    """All of it: batches by partition, oldest first; decisions, oldest first for each producer id."""

    batches: Mapping[Partition, Sequence[Batch]]
    decisions: Sequence[Decision]


def read_log(cluster: LocalKafka, topics: Iterable[str]) -> ClusterLog:
    """The log of these topics, of committed offsets and of transactions.

    Raises:
        UnavailableError: the tool failed; the message is what it printed.
    """
    offsets = _dump(cluster, _segments(cluster, [OFFSETS]), "--offsets-decoder")
    states = _dump(cluster, _segments(cluster, [TRANSACTIONS]), "--transaction-log-decoder")
    return ClusterLog({**batches_in(cluster, topics), **batches_of(offsets)}, decisions_of(states))


def batches_in(cluster: LocalKafka, topics: Iterable[str]) -> dict[Partition, list[Batch]]:
    """The batches of these topics, and the markers. A running broker may be read: an answered write is in its file.

    Raises:
        UnavailableError: the tool failed; the message is what it printed.
    """
    # Deep iteration prints the markers but no payloads, so a record's value cannot look like a batch.
    return batches_of(_dump(cluster, _segments(cluster, topics), "--deep-iteration"))


def batches_of(dumped: str) -> dict[Partition, list[Batch]]:
    """The batches in what DumpLogSegments has printed, with deep iteration or decoded offsets."""
    found: dict[Partition, list[Batch]] = {}
    partition = Partition("", 0)
    for line in dumped.splitlines():
        if line.startswith("Dumping "):
            partition = _partition(Path(line.removeprefix("Dumping ")).parent.name)
            found.setdefault(partition, [])
        elif line.startswith("baseOffset: "):
            fields = dict(_FIELD.findall(line))
            found[partition].append(
                Batch(
                    partition,
                    int(fields["producerId"]),
                    int(fields["producerEpoch"]),
                    int(fields["baseOffset"]),
                    int(fields["lastOffset"]),
                    fields["isTransactional"] == "true",
                    control=fields["isControl"] == "true",
                )
            )
        elif line.startswith("| offset: "):
            last = found[partition][-1]
            if last.control:
                fields = dict(_FIELD.findall(line))
                written_ms = int(fields.get("CreateTime") or fields.get("LogAppendTime", 0))
                found[partition][-1] = last._replace(
                    marker=fields.get("endTxnMarker", ""), written_ms=written_ms
                )
            elif commits := tuple(_commits(line)):
                found[partition][-1] = last._replace(commits=last.commits + commits)
    return found


def decisions_of(dumped: str) -> list[Decision]:
    """The decisions in what DumpLogSegments has printed of the coordinators' log; each once."""
    found: dict[tuple[int, int, bool], Decision] = {}
    for line in dumped.splitlines():
        if (both := _decoded(line)) is not None and (
            committed := _PREPARED.get(_status(both[1]))
        ) is not None:
            data = both[1]["data"]
            decision = Decision(
                int(data["producerId"]),
                int(data["transactionStartTimestampMs"]),
                committed,
                frozenset(
                    Partition(one["topic"], number)
                    for one in data["transactionPartitions"] or ()
                    for number in one["partitionIds"]
                ),
                int(data["transactionLastUpdateTimestampMs"]),
            )
            found[decision[:3]] = decision
    return list(found.values())


def _status(payload: Mapping[str, Any]) -> int:
    return int(payload["data"].get("transactionStatus", -1))


def _commits(line: str) -> Iterator[Commit]:
    if (both := _decoded(line)) is not None and both[0]["type"] in {"0", "1"}:
        key, value = both[0]["data"], both[1]["data"]
        yield Commit(key["group"], Partition(key["topic"], int(key["partition"])), int(value["offset"]))


def _decoded(line: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Key and payload of a decoded record; None for a tombstone and for any other line."""
    found = _KEY_AND_PAYLOAD.search(line)
    return None if found is None else (json.loads(found[1]), json.loads(found[2]))


def _dump(cluster: LocalKafka, segments: Sequence[Path], how: str) -> str:
    if not segments:
        return ""
    files = ",".join(map(str, segments))
    done = cluster.tool(DUMP_LOG_SEGMENTS, how, "--files", files, timeout_s=_TOOL_S)
    if done.returncode != 0:
        raise UnavailableError(f"the brokers' log could not be read: {done.stderr or done.stdout}")
    return done.stdout


def _segments(cluster: LocalKafka, topics: Iterable[str]) -> list[Path]:
    """The segments of each partition, oldest first, of the broker that has most of it."""
    best: dict[Partition, tuple[int, list[Path]]] = {}
    for topic in topics:
        for broker in cluster.brokers:
            for directory in sorted(cluster.data_dir(broker.id).glob(f"{topic}-*")):
                partition = _partition(directory.name)
                if partition.topic != topic:  # of a topic whose name begins like this one
                    continue
                segments = sorted(directory.glob("*.log"))
                size = sum(one.stat().st_size for one in segments)
                if size > best.get(partition, (0, []))[0]:
                    best[partition] = size, segments
    return [segment for _, (_, segments) in sorted(best.items()) for segment in segments]


def _partition(directory: str) -> Partition:
    topic, _, number = directory.rpartition("-")
    return Partition(topic, int(number)) if number.isdigit() else Partition(directory, -1)

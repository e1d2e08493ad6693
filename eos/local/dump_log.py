"""A partition's log as Kafka's own DumpLogSegments prints it: data and the markers of transactions."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from subprocess import CompletedProcess
from typing import NamedTuple

DUMP_LOG_SEGMENTS = "kafka.tools.DumpLogSegments"

Tool = Callable[..., CompletedProcess[str]]

_FIELD = re.compile(r"(\w+): (\S+)")


class EntryKind(Enum):
    """What a batch of the log is."""

    DATA = "data"
    ABORT_MARKER = "abort marker"
    COMMIT_MARKER = "commit marker"
    OTHER_CONTROL = "other control"


class LogEntry(NamedTuple):
    """One batch. Producer id and epoch are -1 for a plain producer; offsets are the first and the last."""

    kind: EntryKind
    producer_id: int
    producer_epoch: int
    base_offset: int
    last_offset: int
    transactional: bool


def dump_log(tool: Tool, data_dir: Path, *logs: tuple[str, int]) -> list[LogEntry]:
    """The batches of all segments of partitions, oldest first within each; all by one run of the tool.

    Args:
        tool: runs a tool of Kafka: ``LocalKafka.tool``.
        data_dir: the broker's log directory. A running broker may be read: an answered write is in the file.
        *logs: topics and their partitions.

    Raises:
        FileNotFoundError: the broker has no such partition.
        RuntimeError: the tool failed; the message is what it printed.
    """
    segments: list[Path] = []
    for topic, partition in logs:
        directory = data_dir / f"{topic}-{partition}"
        found = sorted(directory.glob("*.log"))
        if not found:
            raise FileNotFoundError(f"no log segment in {directory}")
        segments += found
    # Deep iteration prints the markers but no payloads, so a record's value cannot look like a batch.
    files = ",".join(str(segment) for segment in segments)
    done = tool(DUMP_LOG_SEGMENTS, "--deep-iteration", "--files", files)
    if done.returncode != 0:
        raise RuntimeError(done.stderr or done.stdout)
    return parse(done.stdout)


def parse(text: str) -> list[LogEntry]:
    """The batches in the output of DumpLogSegments, with ``--deep-iteration`` or ``--print-data-log``.

    Raises:
        ValueError: a control batch is not followed by its record (neither option was given).
    """
    entries: list[LogEntry] = []
    lines = iter(text.splitlines())
    for line in lines:
        if not line.startswith("baseOffset: "):
            continue
        fields = dict(_FIELD.findall(line))
        kind = _control_kind(next(lines, "")) if fields["isControl"] == "true" else EntryKind.DATA
        entries.append(
            LogEntry(
                kind,
                producer_id=int(fields["producerId"]),
                producer_epoch=int(fields["producerEpoch"]),
                base_offset=int(fields["baseOffset"]),
                last_offset=int(fields["lastOffset"]),
                transactional=fields["isTransactional"] == "true",
            )
        )
    return entries


def _control_kind(record_line: str) -> EntryKind:
    if not record_line.startswith("| offset: "):
        raise ValueError(f"a control batch is followed by {record_line!r}, not by its record")
    marker = dict(_FIELD.findall(record_line)).get("endTxnMarker")
    return {"ABORT": EntryKind.ABORT_MARKER, "COMMIT": EntryKind.COMMIT_MARKER}.get(
        marker or "", EntryKind.OTHER_CONTROL
    )

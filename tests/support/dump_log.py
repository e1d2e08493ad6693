"""A partition's log as the broker has it on disk, by Kafka's own DumpLogSegments: data and the markers of transactions."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from subprocess import CompletedProcess
from typing import NamedTuple

from eos.prove.log import DUMP_LOG_SEGMENTS, Batch, batches_of

Tool = Callable[..., CompletedProcess[str]]


class EntryKind(Enum):
    """What a batch of the log is."""

    DATA = "data"
    ABORT_MARKER = "abort marker"
    COMMIT_MARKER = "commit marker"
    OTHER_CONTROL = "other control"


_MARKERS = {"ABORT": EntryKind.ABORT_MARKER, "COMMIT": EntryKind.COMMIT_MARKER}


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
    """The batches in the output of DumpLogSegments."""
    return [_entry(one) for batches in batches_of(text).values() for one in batches]


def _entry(one: Batch) -> LogEntry:
    if one.control and not one.written_ms:
        raise ValueError(f"the control batch at {one.base} is followed by another line, not by its record")
    kind = _MARKERS.get(one.marker, EntryKind.OTHER_CONTROL) if one.control else EntryKind.DATA
    return LogEntry(kind, one.producer_id, one.epoch, one.base, one.last, one.transactional)

"""The parser of DumpLogSegments tells data from markers and reads producer ids and epochs."""

from __future__ import annotations

from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.support.dump_log import EntryKind, LogEntry, dump_log, parse


def batch(base: int, last: int, pid: int, epoch: int, *, transactional: bool, control: bool) -> str:
    return (
        f"baseOffset: {base} lastOffset: {last} count: {last - base + 1} baseSequence: 0 lastSequence: 0 "
        f"producerId: {pid} producerEpoch: {epoch} partitionLeaderEpoch: 0 "
        f"isTransactional: {str(transactional).lower()} isControl: {str(control).lower()} "
        "deleteHorizonMs: OptionalLong.empty position: 0 CreateTime: 1795248173465 size: 80 magic: 2 "
        "compresscodec: none crc: 3656662541 isvalid: true\n"
    )


def marker(offset: int, kind: str) -> str:
    return (
        f"| offset: {offset} CreateTime: 1795248173731 keySize: 4 valueSize: 6 sequence: -1 headerKeys: [] "
        f"endTxnMarker: {kind} coordinatorEpoch: 0\n"
    )


def record(offset: int) -> str:
    return f"| offset: {offset} CreateTime: 1 keySize: -1 valueSize: 1 sequence: 0 headerKeys: []\n"


def failing(*arguments: str) -> CompletedProcess[str]:
    return CompletedProcess(arguments, 1, "", "no such class")


HEAD = "Dumping data/t-0/00000000000000000000.log\nLog starting offset: 0\n"


def test_sequence_of_a_fence_is_read() -> None:
    text = (
        HEAD
        + batch(0, 1, 7, 0, transactional=True, control=False)
        + record(0)
        + record(1)
        + batch(2, 2, 7, 1, transactional=True, control=True)
        + marker(2, "ABORT")
        + batch(3, 3, 7, 2, transactional=True, control=False)
        + record(3)
        + batch(4, 4, 7, 2, transactional=True, control=True)
        + marker(4, "COMMIT")
    )
    assert parse(text) == [
        LogEntry(EntryKind.DATA, 7, 0, 0, 1, transactional=True),
        LogEntry(EntryKind.ABORT_MARKER, 7, 1, 2, 2, transactional=True),
        LogEntry(EntryKind.DATA, 7, 2, 3, 3, transactional=True),
        LogEntry(EntryKind.COMMIT_MARKER, 7, 2, 4, 4, transactional=True),
    ]


def test_plain_batch_has_no_producer() -> None:
    text = HEAD + batch(0, 0, -1, -1, transactional=False, control=False) + record(0)
    assert parse(text) == [LogEntry(EntryKind.DATA, -1, -1, 0, 0, transactional=False)]


def test_control_batch_without_its_record_is_refused() -> None:
    with pytest.raises(ValueError, match="not by its record"):
        parse(HEAD + batch(0, 0, 7, 1, transactional=True, control=True))


def test_empty_log_has_no_entries() -> None:
    assert parse(HEAD) == []


def test_all_segments_are_dumped_in_order(tmp_path: Path) -> None:
    directory = tmp_path / "t-1"
    directory.mkdir()
    for name in ("00000000000000000009.log", "00000000000000000000.log", "00000000000000000000.index"):
        (directory / name).touch()
    asked: list[tuple[str, ...]] = []

    def tool(*arguments: str) -> CompletedProcess[str]:
        asked.append(arguments)
        return CompletedProcess(arguments, 0, HEAD, "")

    assert dump_log(tool, tmp_path, ("t", 1)) == []
    assert [Path(file).name for file in asked[0][-1].split(",")] == [
        "00000000000000000000.log",
        "00000000000000000009.log",
    ]


def test_missing_partition_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="t-3"):
        dump_log(failing, tmp_path, ("t", 3))


def test_failed_tool_tells_why(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "00000000000000000000.log").touch()
    with pytest.raises(RuntimeError, match="no such class"):
        dump_log(failing, tmp_path, ("t", 0))

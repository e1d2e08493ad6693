"""What workers were told is held against the offsets in the end."""

from __future__ import annotations

import json
from pathlib import Path

from eos.offsets import Partition
from eos.prove.history import History, read_history

P0, P1 = Partition("in", 0), Partition("in.puts", 1)


def line(event: str, at: int, **fields: object) -> str:
    return json.dumps(
        {"timestamp": f"2026-01-01T00:00:{at:02d}Z", "level": "debug", "event": event, "shard": "#0"} | fields
    )


def history(tmp_path: Path, *lines: str) -> History:
    log = tmp_path / "instance-0.log"
    log.write_text("\n".join(lines) + "\n")
    return read_history([log])


def committed(at: int, ranges: str, records: int = 1) -> str:
    return line(
        "transaction committed", at, ranges=ranges, records_in=records, records_out=records, seconds=0.1
    )


def test_ends_are_read_in_order_whatever_stands_between_them(tmp_path: Path) -> None:
    found = history(
        tmp_path,
        "a line of a library",
        committed(2, "in[0] [0, 5), in.puts[1] [3, 4)"),
        line("started", 0, ordinal=0, pid=7),
        line("transaction aborted", 1, reason="no", seconds=0.2),
        '["no", "object"]',
        '{"event": "transaction commit',  # killed while it wrote
    )
    assert [one.outcome for one in found.ended] == ["aborted", "committed"]
    assert found.counts() == {"aborted": 1, "committed": 1}
    assert found.ranges == {P0: [(0, 5)], P1: [(3, 4)]}


def test_confirmed_commits_that_meet_and_end_at_the_offset_fit(tmp_path: Path) -> None:
    found = history(tmp_path, committed(1, "in[0] [0, 5)"), committed(2, "in[0] [5, 9)"))
    assert list(found.contradictions({P0: 9})) == []
    assert found.settled_unknown({P0: 9}) == 0


def test_a_commit_nobody_was_told_of_is_counted_and_no_contradiction(tmp_path: Path) -> None:
    found = history(tmp_path, committed(1, "in[0] [0, 5)"), committed(2, "in[0] [8, 9)"))
    assert list(found.contradictions({P0: 10})) == []
    assert found.settled_unknown({P0: 10}) == 4


def test_input_that_was_confirmed_twice_contradicts(tmp_path: Path) -> None:
    found = history(tmp_path, committed(1, "in[0] [0, 5)"), committed(2, "in[0] [4, 9)"))
    (said,) = found.contradictions({P0: 9})
    assert said == "in[0]: two confirmed commits share input: [0, 5) and [4, 9)"


def test_a_confirmed_commit_beyond_the_committed_offset_contradicts(tmp_path: Path) -> None:
    found = history(tmp_path, committed(1, "in[0] [0, 5)"))
    (said,) = found.contradictions({P0: 4})
    assert said == "in[0]: a commit up to 5 was confirmed, and the committed offset is 4"

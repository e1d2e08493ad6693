"""`eos status` fits a terminal of 80 columns."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from eos.cli.printing import answer
from eos.cli.status import _shown
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.groups import Member
from eos.offsets import Partition
from eos.ops.check.status import JobStatus, PartitionStatus

TOPIC = "settlements-europe"


def _partition(number: int, member: str | None) -> PartitionStatus:
    metadata = OffsetMetadata(
        OwnershipMode.GROUP, "#0", app="refunds", at_s=int(time.time()) - 3, owner="1f2e3d", host="web-1/17"
    )
    return PartitionStatus(
        Partition(TOPIC, number),
        1_234_567_890,
        metadata,
        1_234_600_000,
        1_234_600_000,
        "",
        member,
        f"broker {number} (kafka-{number}.kafka:9093)" if number == 10 else None,
    )


def _print(found: JobStatus) -> None:
    answer(None, lambda: _shown("refunds", found), as_json=False)


def test_input_that_is_gone_is_no_lag_and_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    one = replace(_partition(10, None), committed=100, start=620, lso=631, end=631)
    assert (one.lag, one.gone) == (11, 520)
    _print(JobStatus("refunds", (), (one,), ()))
    said = " ".join(capsys.readouterr().out.split())
    assert (
        f"{TOPIC}[10]: up to 520 offsets were deleted before they were processed, the log begins at 620"
        in said
    )
    assert replace(one, committed=620).gone == 0


def test_offset_beyond_the_end_of_the_log_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    one = replace(_partition(10, None), committed=99, lso=4, end=4)
    _print(JobStatus("refunds", (), (one,), ()))
    said = " ".join(capsys.readouterr().out.split())
    assert f"{TOPIC}[10]: the offset is 95 beyond the end of the log, 4" in said
    assert replace(one, committed=4).beyond == 0


def test_input_that_waits_behind_an_old_commit_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """As where a transform hangs: its owner is a member, and the lag alone looks like that of a busy job."""
    busy = _partition(10, "refunds-0")
    assert busy.metadata is not None
    hangs = replace(
        busy,
        partition=Partition(TOPIC, 11),
        metadata=replace(busy.metadata, at_s=int(time.time()) - 180),
    )
    idle = replace(hangs, partition=Partition(TOPIC, 12), committed=hangs.lso)
    _print(JobStatus("refunds", (), (busy, hangs, idle), ()))
    said = " ".join(capsys.readouterr().out.split())
    assert f"{TOPIC}[11]: input waits, and nothing was committed for 3 min" in said
    assert [one.waits for one in (busy, hangs, idle)] == [False, True, False]


def test_each_partition_has_one_line_of_eighty_columns_and_each_member_one_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    member = Member("rdkafka", "refunds-production-3f9a1c-0", "10.24.117.203", (Partition(TOPIC, 10),))
    found = JobStatus("refunds", (member,), (_partition(10, str(member)), _partition(11, None)), ())
    _print(found)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for number in (10, 11):
        [row] = [line.split() for line in lines if line.strip().startswith(f"{TOPIC}[{number}]")]
        assert row[:5] == [f"{TOPIC}[{number}]", "1,234,567,890", "32,110", "0", "#0"]
        assert row[-2:] == ["s", "ago"]
    assert f"refunds-production-3f9a1c-0 @ 10.24.117.203 reads {TOPIC}[10]" in lines
    assert f"no member reads {TOPIC}[11]" in lines
    assert f"web-1/17 last committed {TOPIC}[11]" in lines  # of 10 the member is shown
    assert f"broker 10 (kafka-10.kafka:9093) leads {TOPIC}[10]" in lines
    assert f"no broker leads {TOPIC}[11]" in lines


def test_input_waits_only_where_it_is_not_committed_for_longer_than_a_transaction_is_filled() -> None:
    one = _partition(0, None)
    assert one.metadata is not None
    late = replace(one, metadata=replace(one.metadata, at_s=int(time.time()) - 90))
    assert late.waits
    assert not replace(late, filled_s=60.0).waits

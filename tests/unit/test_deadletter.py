"""Dead letters are pure: the same input gives the same bytes, whatever the error's text holds."""

from __future__ import annotations

import pytest

from eos.deadletter import dead_letter, died_with, skipped, skipped_by_operator
from eos.offsets import Partition
from eos.records import InputRecord

RECORD = InputRecord("in", 3, 41, b"k", b"\xff", (("h", b"1"), ("h", None)), 1_700_000_000_000)


def test_dead_letter_is_the_raw_record_with_where_and_why() -> None:
    letter = dead_letter(RECORD, "ValueError: no", topic="in.dlq")
    assert (letter.topic, letter.key, letter.value, letter.timestamp_ms, letter.partition) == (
        "in.dlq",
        b"k",
        b"\xff",
        1_700_000_000_000,
        None,
    )
    assert letter.headers == (
        ("h", b"1"),
        ("h", None),
        ("eos.deadletter.topic", b"in"),
        ("eos.deadletter.partition", b"3"),
        ("eos.deadletter.offset", b"41"),
        ("eos.deadletter.error", b"ValueError: no"),
    )


def test_letter_that_is_fed_again_says_where_it_failed_last_and_has_no_older_headers() -> None:
    letter = dead_letter(RECORD, "ValueError: no", topic="in")
    for again in range(2):
        fed = InputRecord("in", 0, 7 + again, letter.key, letter.value, letter.headers, letter.timestamp_ms)
        letter = dead_letter(fed, f"ValueError: still {again}", topic="in")
    assert letter.headers == (
        ("h", b"1"),
        ("h", None),
        ("eos.deadletter.topic", b"in"),
        ("eos.deadletter.partition", b"0"),
        ("eos.deadletter.offset", b"8"),
        ("eos.deadletter.error", b"ValueError: still 1"),
    )


def test_tombstone_without_key_or_time_stays_one() -> None:
    letter = dead_letter(InputRecord("in", 0, 0, None, None), "no", topic="dlq")
    assert (letter.key, letter.value, letter.timestamp_ms) == (None, None, None)


def test_text_that_quotes_a_whole_record_is_cut() -> None:
    letter = dead_letter(RECORD, "x" * 10_000, topic="dlq")
    assert len(dict(letter.headers)["eos.deadletter.error"] or b"") == 500


def test_text_with_a_lone_surrogate_does_not_stop_the_job() -> None:
    r"""JSON like "\ud800" parses to text that UTF-8 does not know, and an error may quote it."""
    letter = dead_letter(RECORD, "ValueError: unknown currency \ud800", topic="dlq")
    assert (dict(letter.headers)["eos.deadletter.error"] or b"").startswith(b"ValueError: unknown currency ")


@pytest.mark.parametrize("timestamp_ms", [0, -1])
def test_letter_of_a_record_whose_time_cannot_be_written_has_the_clients(timestamp_ms: int) -> None:
    """Else the dead letter would be refused in its turn, and the job stop at each start."""
    letter = dead_letter(InputRecord("in", 0, 0, None, b"v", (), timestamp_ms), "no", topic="dlq")
    assert letter.timestamp_ms is None


@pytest.mark.parametrize(
    ("reason", "by_death", "by_hand"),
    [
        ("ValueError: SkippedByOperator: no", False, False),
        ("ProcessDiedError: 3 processes", True, False),
        (skipped_by_operator("no amount"), False, True),
    ],
)
def test_letter_says_whether_its_record_was_not_transformed(
    reason: str, by_death: bool, by_hand: bool
) -> None:
    letter = dead_letter(RECORD, reason, topic="dlq")
    found = InputRecord("dlq", 0, 0, letter.key, b"", letter.headers)
    place = (Partition("in", 3), 41)
    assert died_with(found) == (place if by_death else None)
    assert skipped(found) == (place if by_hand else None)

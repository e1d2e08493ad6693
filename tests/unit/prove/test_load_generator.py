"""Files as input: what a line says, and what is refused before anything starts."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from eos.errors import ConfigError
from eos.prove.load_generator import feed_of_file
from eos.records import OutputRecord
from tests.support.documents import blocks


def test_lines_are_values_and_begin_again_when_they_end(tmp_path: Path) -> None:
    file = tmp_path / "values.txt"
    file.write_bytes(b"one\r\n\ntwo \xff\n")
    feed = feed_of_file(file, ["in"])
    assert list(islice(feed(7), 4)) == [b"one", b"", b"two \xff", b"one"]


def test_lines_of_json_have_keys_headers_times_and_topics(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text(
        '{"value": "plain"}\n\n'
        '{"key": "k", "value": {"a": [1, "ä"]}}\n'
        '{"key": 7, "value": null, "topic": "b", "headers": {"h": "x", "n": null}, "timestamp_ms": 5}\n'
        '{"value": "", "timestamp_ms": 6}\n'
    )
    assert list(islice(feed_of_file(file, ["a", "b"])(7), 5)) == [
        (None, b"plain"),
        (b"k", '{"a":[1,"ä"]}'.encode()),
        OutputRecord("b", None, b"7", headers=(("h", b"x"), ("n", None)), timestamp_ms=5),
        OutputRecord("", b"", None, timestamp_ms=6),
        (None, b"plain"),
    ]


def test_the_documents_line_is_a_record(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text(blocks("docs/guides/fault-injection.md", "json")["1. Give it input"])
    (record,) = islice(feed_of_file(file, ["whispers"])(7), 1)
    assert record == OutputRecord(
        "whispers", b'{"amount":5}', b"m-7", headers=(("source", b"till"),), timestamp_ms=1767225600000
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no record"),
        ("\n\n", "no record"),
        ('{"value": "x"}\n{"value"', "line 2 is not JSON"),
        ('\n{"key": "x"}', "line 2: that is no record"),
        ('{"value": "x", "Key": "y"}', "line 1: that is no record"),
        ("[1]", "line 1: that is no record"),
        ('{"value": "x", "topic": "elsewhere"}', "'elsewhere' is no input"),
        ('{"value": "x", "headers": ["h"]}', "headers is an object"),
        ('{"value": "x", "timestamp_ms": 0}', "above 0"),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_its_number(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match=named) as refused:
        feed_of_file(file, ["in"])
    assert "Fix: " in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        feed_of_file(tmp_path / "none.txt", ["in"])

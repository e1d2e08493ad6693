"""librdkafka's log lines: each kind once in 10 s, with the number of those left out."""

from __future__ import annotations

import logging

import pytest

from eos.kafka.librdkafka import LogLines

TEMPLATE = "%s [%s] %s"


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_flood_of_an_outage_is_one_line_in_ten_seconds_that_counts_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    monkeypatch.setattr("eos.kafka.librdkafka.time", clock)
    lines = LogLines()
    with caplog.at_level(logging.INFO, "eos.kafka.librdkafka"):
        for _ in range(400):
            lines.log(logging.ERROR, TEMPLATE, "FAIL", "rdkafka#consumer-1", "Connection refused")
            clock.now += 0.025
        lines.log(logging.ERROR, TEMPLATE, "FAIL", "rdkafka#consumer-1", "Connection refused")
    assert [record.getMessage() for record in caplog.records] == [
        "librdkafka: FAIL [rdkafka#consumer-1] Connection refused",
        "librdkafka: FAIL [rdkafka#consumer-1] Connection refused (399 more FAIL lines since the last one)",
    ]
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


def test_line_of_another_kind_is_not_held_up(caplog: pytest.LogCaptureFixture) -> None:
    lines = LogLines()
    with caplog.at_level(logging.INFO, "eos.kafka.librdkafka"):
        lines.log(logging.ERROR, TEMPLATE, "FAIL", "rdkafka#consumer-1", "Connection refused")
        lines.log(logging.WARNING, TEMPLATE, "REQTMOUT", "rdkafka#consumer-1", "Timed out FetchRequest")
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING]

"""What a consumer's librdkafka logs: lines for the log, and the ids of topics."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from eos.kafka.consumer_log import ConsumerLog

CHANGED = "Topic {} changed id from {} to {}"
NONE, FIRST, SECOND = "AAAAAAAAAAAAAAAAAAAAAA", "p7bTxRrJQcmLbKvLQ+Kk/g", "J3OhBBOaQ5yZrqjTXA+kKw"


def say(log: ConsumerLog, text: str, level: int = logging.DEBUG) -> None:
    """As confluent-kafka hands over a line of librdkafka."""
    logger: Any = log.options(with_ids=True)["logger"]
    logger.log(level, "%s [%s] %s", "METADATA", "rdkafka#consumer-1", text)


def test_new_id_of_a_topic_is_taken_once() -> None:
    log = ConsumerLog(())
    say(log, "[thrd:main]: " + CHANGED.format("orders", NONE, FIRST))
    say(log, CHANGED.format("orders", FIRST, SECOND))
    say(log, CHANGED.format("old", NONE, NONE))
    assert log.take() == [
        ("orders", "p7bTxRrJQcmLbKvLQ-Kk_g"),
        ("orders", "J3OhBBOaQ5yZrqjTXA-kKw"),
        ("old", ""),
    ]
    assert log.take() == []


def test_lines_that_tell_of_trouble_are_logged_without_secrets_and_no_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = ConsumerLog(["hush"])
    with caplog.at_level(logging.DEBUG):
        say(log, "Requesting metadata for 1/1 topics")
        say(log, "could not log in with hush", logging.WARNING)
        assert log.take() == []
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "hush" not in record.getMessage()
    assert record.getMessage().startswith("librdkafka: METADATA [rdkafka#consumer-1] could not log in")

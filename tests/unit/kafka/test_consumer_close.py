"""A consumer's close has a deadline, which librdkafka's has not."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from eos.kafka import consumer as module
from eos.kafka.consumer import ConsumerClient


class Hanging:
    """A client in which a record is locked: it is never destroyed."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def close(self) -> None:
        self.released.wait(60)


def test_client_that_does_not_go_is_left_behind_in_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_CLOSE_S", 0.2)
    client = ConsumerClient({"bootstrap.servers": "127.0.0.1:1", "group.id": "stuck", "log_level": 0})
    hanging: Any = Hanging()
    real, client._consumer = client._consumer, hanging
    began = time.monotonic()
    for _ in range(2):
        client.close()
    assert time.monotonic() - began < 30
    assert caplog.text.count("the consumer of group stuck was not closed after 0.2 s") == 1
    hanging.released.set()
    real.close()

"""A signal's handler raises inside a constructor of confluent-kafka: the caller gets that, not a SystemError."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from eos.kafka.librdkafka import constructed

WAIT_S = 20.0
NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


class InterruptedByTestError(Exception):
    pass


@contextlib.contextmanager
def interrupting() -> Iterator[list[int]]:
    """A signal to the main thread every millisecond; its handler raises, and empties the list, if that is not empty."""
    armed: list[int] = []
    over = threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def handler(*_: object) -> None:
        if armed:
            armed.clear()
            raise InterruptedByTestError

    def send() -> None:
        while not over.wait(0.001):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield armed
    finally:
        over.set()
        sender.join(WAIT_S)
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("client", "more"), [(AdminClient, {}), (Producer, {}), (Consumer, {"group.id": "any"})]
)
def test_signal_whose_handler_raises_inside_a_constructor_is_raised_as_itself(
    client: Callable[[dict[str, Any]], object], more: dict[str, str]
) -> None:
    inside = 0

    def made(options: dict[str, Any]) -> object:
        nonlocal inside
        try:
            return client(options)
        except SystemError:  # the canary: without it the workaround can go
            inside += 1
            raise

    deadline = time.monotonic() + WAIT_S
    with interrupting() as armed:
        while inside < 3:
            assert time.monotonic() < deadline
            try:
                armed.append(1)
                kept = constructed(made, {**NOWHERE, **more})
                armed.clear()
            except InterruptedByTestError:
                continue
            del kept  # not before: a destructor leaves the exception to whatever comes next

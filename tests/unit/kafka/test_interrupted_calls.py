"""Where an exception comes from that leaves a call of the client: what the call has taken is queued, or it is not."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from eos.base.raised_at import of_a_signal_handler


@pytest.fixture
def pythons_own_handler() -> Iterator[None]:
    """A test before may have left another: a SparkContext installs its own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("pythons_own_handler")
def test_an_interrupt_by_pythons_own_handler_is_thatof_a_signal_handler() -> None:
    """It has no Python frame: the record that the call had taken was not counted, and its abort did not wait for it."""
    with pytest.raises(KeyboardInterrupt) as raised:
        deque(map(signal.raise_signal, [signal.SIGINT]), maxlen=0)
    assert of_a_signal_handler(raised.value)


def test_an_error_of_the_call_itself_is_not() -> None:
    def refuse() -> None:
        int("no number")

    with pytest.raises(ValueError, match="invalid literal") as raised:
        deque(map(int, ["no number"]), maxlen=0)
    assert not of_a_signal_handler(raised.value)
    with pytest.raises(ValueError, match="invalid literal") as raised:
        refuse()
    assert of_a_signal_handler(raised.value)
    assert not of_a_signal_handler(KafkaException(KafkaError(KafkaError._QUEUE_FULL)))

"""Where an exception comes from that leaves a call of the client: what the call has taken is queued, or it is not."""

from __future__ import annotations

import signal
from collections import deque

import pytest
from confluent_kafka import KafkaError, KafkaException

from eos.kafka.producer import _of_a_signal_handler


def test_an_interrupt_by_pythons_own_handler_is_that_of_a_signal_handler() -> None:
    """It has no Python frame: the record that the call had taken was not counted, and its abort did not wait for it."""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt) as raised:
        deque(map(signal.raise_signal, [signal.SIGINT]), maxlen=0)
    assert _of_a_signal_handler(raised.value)


def test_an_error_of_the_call_itself_is_not() -> None:
    def refuse() -> None:
        int("no number")

    with pytest.raises(ValueError, match="invalid literal") as raised:
        deque(map(int, ["no number"]), maxlen=0)
    assert not _of_a_signal_handler(raised.value)
    with pytest.raises(ValueError, match="invalid literal") as raised:
        refuse()
    assert _of_a_signal_handler(raised.value)
    assert not _of_a_signal_handler(KafkaException(KafkaError(KafkaError._QUEUE_FULL)))

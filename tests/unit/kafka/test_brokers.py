"""Asking a broker who is alive, where no broker answers; the answer of a real one is seen in tests/broker."""

from __future__ import annotations

import socket
import threading

import pytest

from eos.kafka import brokers
from eos.local.ports import HOST
from tests.support.patience import PATIENCE_S


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n"], ids=["closed", "http"])
def test_what_is_no_broker_is_no_answer(answer: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server((HOST, 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        assert brokers.ask(HOST, listener.getsockname()[1], 0.1) is None
        thread.join(PATIENCE_S)
    assert capfd.readouterr() == ("", "")


def test_a_port_where_nothing_listens_is_no_answer_and_no_noise(capfd: pytest.CaptureFixture[str]) -> None:
    assert brokers.ask(HOST, 1, 0.1) is None
    assert capfd.readouterr() == ("", "")

"""A fault of kafka-python that the suite steps around. A failure here means: the filter in pyproject.toml can go."""

from __future__ import annotations

import gc
import logging
import socket
import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of importlib.resources, which it uses the old way
    from kafka import admin, errors

pytestmark = pytest.mark.canary


def test_socket_of_a_refused_connection_is_left_to_the_garbage_collector(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(
        logging.CRITICAL, "kafka"
    )  # its lines hold the failed connection, and pytest holds the lines
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        closed_port = taken.getsockname()[1]
    gc.collect()  # what other tests have left
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            admin.KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{closed_port}", bootstrap_timeout_ms=300)
        except errors.KafkaError as error:
            del error
        gc.collect()
    assert any("unclosed <socket" in str(one.message) and "'0.0.0.0'" in str(one.message) for one in seen)

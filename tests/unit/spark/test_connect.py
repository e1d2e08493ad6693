"""Spark Connect: every public entry refuses its sessions and frames in the same words, before anything else."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle

from eos.errors import ConfigError
from eos.settings import Settings
from eos.spark import (
    ExactlyOnceBatch,
    SparkJob,
    StreamJob,
    check_session,
    exactly_once_sink,
    read_snapshot,
    read_stream,
    run_job,
    start_stream,
    write_stream,
)
from tests.support.settings import settings_of


class _OfConnect:
    """A session or a frame of Spark Connect, as eos can tell it: by the module of its class. Nothing of it works."""


_OfConnect.__module__ = "pyspark.sql.connect.session"


def _settings() -> Settings:
    return settings_of("a:1", **{"input.start": "earliest"})


def _sink() -> Any:
    return exactly_once_sink(_settings(), name="s", inputs=["in"], outputs=["out"])


def _same(frame: Any) -> Any:
    return frame


_TOPICS: dict[str, Any] = {"name": "s", "inputs": ["in"], "outputs": ["out"]}
_ENTRIES: dict[str, Callable[[Any], object]] = {
    "check_session": lambda given: check_session(given, _settings()),
    "ExactlyOnceBatch": lambda given: ExactlyOnceBatch(given, _settings(), **_TOPICS),
    "run_job": lambda given: run_job(SparkJob(transform=_same, **_TOPICS), given, _settings()),
    "read_snapshot": lambda given: read_snapshot(given, _settings(), "in"),
    "read_stream": lambda given: read_stream(given, _settings(), ["in"], checkpoint="c"),
    "start_stream": lambda given: start_stream(
        StreamJob(transform=_same, **_TOPICS), given, _settings(), checkpoint="c"
    ),
    "write_stream": lambda given: write_stream(given, _settings(), **_TOPICS),
    "ExactlyOnceSink": lambda given: _sink()(given, 0),
}


@pytest.mark.parametrize("entry", list(_ENTRIES))
def test_every_entry_refuses_spark_connect(entry: str) -> None:
    with pytest.raises(
        ConfigError, match=r"this is a Spark Connect session.*Fix: run the driver with the cluster"
    ):
        _ENTRIES[entry](_OfConnect())


def test_a_sink_that_spark_connect_would_send_to_its_server_says_why_not() -> None:
    """PySpark passes an error of pickle's on as it is, and makes a text of any other one."""
    sink = _sink()
    with pytest.raises(pickle.PickleError, match="Spark Connect") as caught:
        cloudpickle.dumps(lambda frame, batch: sink(frame.limit(0), batch))  # type: ignore[no-untyped-call] # PySpark's copy
    assert isinstance(caught.value, ConfigError)

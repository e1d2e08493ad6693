"""A session whose JVM was killed: the error says so, and the stop that fails does not hide it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # it has no types
from pyspark.sql import SparkSession

from eos.errors import UnavailableError, UnclassifiedError
from eos.spark.session import session as session_end
from eos.spark.session.session import stopping


class _Session:
    """Whose calls fail; of the JVM that belongs to it nothing is left but its process."""

    def __init__(self, seconds: int) -> None:
        self.process = subprocess.Popen(["sleep", str(seconds)])
        self.sparkContext = SimpleNamespace(_gateway=SimpleNamespace(proc=self.process))
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1
        raise ConnectionRefusedError(111, "Connection refused")


@pytest.fixture
def gone() -> Iterator[Any]:
    session = _Session(0)
    yield cast("SparkSession", session)
    session.process.wait()
    assert session.stops == 1


def test_what_a_run_ended_of_is_not_hidden_by_the_stop(gone: Any) -> None:
    with pytest.raises(UnavailableError, match="the cluster"), stopping(gone):
        raise UnavailableError("the cluster")


@pytest.mark.parametrize(
    "error", [ConnectionResetError(104, "reset"), Py4JError("while calling o41.collect")]
)
def test_a_call_that_finds_it_gone_is_explained(gone: Any, error: Exception) -> None:
    with pytest.raises(UnclassifiedError, match="JVM has ended"), stopping(gone):
        raise error


def test_a_connection_of_the_jobs_own_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_end, "_ENDS_S", 0.1)
    session: Any = _Session(60)
    try:
        with pytest.raises(ConnectionResetError), stopping(session):
            raise ConnectionResetError(104, "reset")
    finally:
        session.process.kill()
        session.process.wait()

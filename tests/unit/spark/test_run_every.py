"""Runs one after another: SIGTERM lets the one at work end, and no other one begins."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from eos.errors import UsageError
from eos.spark.batch.batch import run_every
from tests.support.patience import PATIENCE_S


class Ended(BaseException):
    """What the handler before raises."""


@pytest.fixture
def before() -> Iterator[None]:
    def end(number: int, frame: FrameType | None) -> None:
        raise Ended

    was = signal.signal(signal.SIGTERM, end)
    yield
    signal.signal(signal.SIGTERM, was)


@pytest.mark.usefixtures("before")
def test_the_run_at_work_ends_and_no_other_one_begins() -> None:
    runs: list[str] = []

    def run() -> None:
        runs.append("begun")
        if len(runs) == 3:
            signal.raise_signal(signal.SIGTERM)
        runs.append("ended")

    run_every(0, run)
    assert runs == ["begun", "ended"] * 2
    with pytest.raises(Ended):  # the handler before is back
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.usefixtures("before")
def test_a_second_signal_does_what_it_did_before() -> None:
    def run() -> None:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Ended):
        run_every(0, run)


@pytest.mark.usefixtures("before")
def test_a_signal_between_two_runs_ends_the_wait() -> None:
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGTERM])
    began = time.monotonic()
    run_every(60, timer.start)
    assert time.monotonic() - began < 30


def test_elsewhere_than_in_the_main_thread_the_event_ends_it() -> None:
    stop = threading.Event()
    runs: list[str] = []

    def run() -> None:
        runs.append("ended")
        stop.set()

    thread = threading.Thread(target=run_every, args=(0, run, stop))
    thread.start()
    thread.join(PATIENCE_S)
    assert len(runs) == 1


def test_a_time_that_is_negative_is_refused() -> None:
    with pytest.raises(UsageError, match="seconds=-1"):
        run_every(-1, lambda: None, threading.Event())

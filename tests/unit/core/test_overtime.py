"""Overtime acts once, beside a block that takes too long, and never after it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from eos.core.overtime import Overtime
from tests.support.patience import PATIENCE_S


@pytest.fixture
def overtime() -> Iterator[Overtime]:
    overtime = Overtime(0.01)
    yield overtime
    overtime.end()


def test_block_that_is_late_is_acted_on_once_while_it_runs(overtime: Overtime) -> None:
    acted: list[str] = []
    done = threading.Event()

    def act() -> None:
        acted.append(threading.current_thread().name)
        done.set()

    with overtime.block(time.monotonic(), act):
        assert done.wait(PATIENCE_S)
        overtime.look()
    assert acted == ["eos-overtime"]


def test_block_that_ends_in_time_is_not_acted_on(overtime: Overtime) -> None:
    acted: list[int] = []
    with overtime.block(time.monotonic() + PATIENCE_S, lambda: acted.append(1)):
        overtime.look()
    with overtime.block(time.monotonic() + PATIENCE_S, lambda: acted.append(2)):
        pass
    overtime.look()
    assert acted == []


def test_block_that_raises_is_over(overtime: Overtime, monkeypatch: pytest.MonkeyPatch) -> None:
    acted: list[int] = []
    with (
        pytest.raises(ZeroDivisionError),
        overtime.block(time.monotonic() + PATIENCE_S, lambda: acted.append(1)),
    ):
        raise ZeroDivisionError
    monkeypatch.setattr("eos.core.overtime.time", SimpleNamespace(monotonic=lambda: math.inf))
    overtime.look()
    assert acted == []


def test_each_block_counts_by_itself(overtime: Overtime) -> None:
    acted: list[int] = []
    for number in range(3):
        done = threading.Event()

        def act(number: int = number, done: threading.Event = done) -> None:
            acted.append(number)
            done.set()

        with overtime.block(time.monotonic(), act):
            assert done.wait(PATIENCE_S)
    assert acted == [0, 1, 2]

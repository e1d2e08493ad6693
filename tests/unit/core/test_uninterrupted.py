"""uninterrupted: a call that runs whole in a thread of its own, and how long it is waited for."""

from __future__ import annotations

import threading
import time

import pytest

from eos.core.uninterrupted import uninterrupted
from eos.errors import AbortableError, ReopenError
from tests.support.patience import PATIENCE_S


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait before the first look is long enough for an answer at once."""
    monkeypatch.setattr("eos.core.uninterrupted._LOOK_S", PATIENCE_S)


def test_call_that_is_answered_at_once_counts_although_the_process_has_to_end(patient: None) -> None:
    """It is asked after a wait whether to wait on, as between two tries of any other call."""
    made = threading.Event()

    def call() -> None:
        time.sleep(0.02)
        made.set()

    uninterrupted(call, 5.0, given_up=lambda: True)
    assert made.is_set()


def test_call_without_an_answer_is_given_up_when_the_process_has_to_end() -> None:
    over = threading.Event()

    def call() -> None:
        over.wait(60)

    began = time.monotonic()
    with pytest.raises(ReopenError, match="the process ends"):
        uninterrupted(call, 60.0, given_up=lambda: time.monotonic() - began > 0.3)
    over.set()
    assert time.monotonic() - began < 30


def test_error_of_the_call_is_raised(patient: None) -> None:
    def call() -> None:
        raise AbortableError("refused")

    with pytest.raises(AbortableError, match="refused"):
        uninterrupted(call, 5.0, given_up=lambda: True)

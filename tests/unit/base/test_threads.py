"""Calls beside their caller: each has a thread to itself while it lasts, which the next one uses again."""

from __future__ import annotations

import os
import threading
import time
import weakref

import pytest

from eos.base import threads
from eos.base.deadline import Deadline
from eos.base.threads import beside
from tests.support.patience import PATIENCE_S


def thread_of_a_call(name: str = "first") -> int | None:
    found: list[int | None] = []
    assert beside(lambda: found.append(threading.current_thread().ident), name=name).wait(PATIENCE_S)
    return found[0]


def waits() -> bool:
    return Deadline(PATIENCE_S).wait_for(lambda: bool(threads._waiting))


def test_next_call_is_made_in_the_thread_of_one_that_is_over() -> None:
    one = thread_of_a_call()
    assert waits()
    assert thread_of_a_call() == one


def test_call_that_does_not_return_holds_up_no_other() -> None:
    go_on = threading.Event()
    hung = beside(lambda: go_on.wait(PATIENCE_S), name="hung")
    assert thread_of_a_call() is not None
    assert not hung.is_set()
    go_on.set()
    assert hung.wait(PATIENCE_S)


def test_what_a_call_has_held_goes_with_it() -> None:
    class Client:
        pass

    clients = [Client()]
    gone = threading.Event()
    weakref.finalize(clients[0], gone.set)
    beside(clients.clear, name="close")
    assert gone.wait(PATIENCE_S)


def test_thread_that_waits_in_vain_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_WAIT_S", 0.01)
    assert thread_of_a_call("soon over")
    assert Deadline(PATIENCE_S).wait_for(
        lambda: all(one.name != "soon over" for one in threading.enumerate())
    )


def test_calls_at_the_moment_a_thread_ends_are_all_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_WAIT_S", 0.0005)
    for number in range(300):
        assert thread_of_a_call()
        time.sleep(number % 7 / 10_000)


def test_fork_makes_its_calls_in_a_thread_of_its_own() -> None:
    thread_of_a_call()
    assert waits()
    child = os.fork()
    if child == 0:
        os._exit(0 if beside(lambda: None, name="child").wait(PATIENCE_S) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

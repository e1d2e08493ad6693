"""Admin clients that are dropped while signals come whose handlers raise."""

from __future__ import annotations

import signal
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from eos.base.deadline import Deadline
from eos.kafka.admin import Admin
from tests.support.patience import PATIENCE_S

# What a handler raises in a destructor, or in a callback of the collector, is raised nowhere: Python says so, and goes on.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


class FromHandlerError(Exception):
    pass


@pytest.fixture(autouse=True)
def _served() -> Iterator[None]:
    """One more, so that the thread that serves idle clients goes on: Python's ``Thread.start`` is not safe from such handlers."""
    admin = Admin(NOWHERE)
    yield
    admin.serve_log()


def test_signal_whose_handler_raises_while_admins_are_dropped_is_raised_as_itself() -> None:
    """A client's destructor left the exception to the next call of C, where Python made a SystemError of it."""
    armed: list[int] = []
    over = threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def handler(*_: object) -> None:
        if armed:
            armed.clear()
            raise FromHandlerError

    def send() -> None:
        while not over.wait(0.0005):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    sender = threading.Thread(target=send)
    sender.start()
    raised, deadline = 0, time.monotonic() + PATIENCE_S
    try:
        while raised < 200:
            assert time.monotonic() < deadline
            try:
                armed.append(1)
                Admin(NOWHERE)
                Admin(NOWHERE)
                armed.clear()
            except FromHandlerError:
                raised += 1
    finally:
        over.set()
        sender.join(PATIENCE_S)
        signal.signal(signal.SIGUSR1, before)


def test_signal_whose_handler_raises_while_clients_are_made_is_raised_as_itself() -> None:
    """The constructor raised a TypeError about the type of an option in its place."""
    armed: list[int] = []

    def handler(*_: object) -> None:
        if armed:
            raise FromHandlerError

    before, kept = signal.signal(signal.SIGALRM, handler), list[Admin]()
    made = interrupted = 0
    try:
        while interrupted < 300:
            assert made < 100_000
            made += 1
            try:
                armed.append(1)
                signal.setitimer(signal.ITIMER_REAL, 0.0001 + made % 40 / 100_000)
                kept.append(Admin(NOWHERE))
            except FromHandlerError:
                interrupted += 1
            armed.clear()
            signal.setitimer(signal.ITIMER_REAL, 0)
            kept.clear()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_client_that_another_replaces_is_not_closed_by_who_asks() -> None:
    """Its destructor waits for the look-up of a name: a question of 3 s ended after 25."""
    admin, closed_in = Admin(NOWHERE), list[str]()
    weakref.finalize(admin._connection.client, lambda: closed_in.append(threading.current_thread().name))
    admin._connection._patience = Deadline(0)
    admin._connection._replace()
    assert Deadline(PATIENCE_S).wait_for(lambda: bool(closed_in))
    assert closed_in == ["eos-admin-close"]

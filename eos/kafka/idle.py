"""Idle: one thread of a process serves the clients that nobody uses for a while.

librdkafka queues log lines, errors and statistics until the application polls, and the queue has no bound. A client that waits
for work (no input, an outage, a caller that sleeps) would grow for as long as that lasts: a producer's log lines alone take 36 MB an
hour while its brokers are away (measured with 2.16), and the next call would serve all of them first.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from contextlib import suppress
from typing import Protocol

_EVERY_S = 1.0


class Idle(Protocol):
    """A client, which knows whether it is in use."""

    def serve_idle(self) -> None:
        """Serve what waits, unless another thread uses the client. Called by the thread of this module, about once a second."""
        ...


class IdleClients:
    """The clients that are served while they live. Callbacks run in the thread, in which no signal handler does."""

    def __init__(self, every_s: float = _EVERY_S) -> None:
        self._every_s = every_s
        self._begin_empty()
        os.register_at_fork(after_in_child=self._begin_empty)

    def _begin_empty(self) -> None:
        """A fork has neither the thread nor a use for the clients, and the lock may be held in it for ever."""
        self._clients: weakref.WeakSet[Idle] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, client: Idle) -> None:
        """Serve a client from now on, until it is removed or collected."""
        with self._lock:
            self._clients.add(client)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._serve, name="eos-idle", daemon=True)
                self._thread.start()

    def remove(self, client: Idle) -> None:
        """Its owner has closed it."""
        if sys.is_finalizing():  # the thread has stopped where it stood, maybe with the lock
            return
        with self._lock:
            self._clients.discard(client)

    def _serve(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(self._every_s)
            with self._lock:
                clients = list(self._clients)
                if not clients:
                    self._thread = None
                    return
            while (
                clients
            ):  # one at a time: no reference of this thread keeps a client that its owner has let go
                with suppress(
                    Exception
                ):  # a client that is closed meanwhile; its owner's calls say what is wrong
                    clients.pop().serve_idle()


IDLE_CLIENTS = IdleClients()

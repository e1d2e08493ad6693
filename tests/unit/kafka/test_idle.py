"""The thread that serves idle clients: while they live, one after the other, whatever one of them raises."""

from __future__ import annotations

import gc
import os
import signal

from eos.base.deadline import Deadline
from eos.kafka.idle import IdleClients
from tests.support.patience import PATIENCE_S


class Client:
    def __init__(self, error: Exception | None = None) -> None:
        self.served = 0
        self._error = error

    def serve_idle(self) -> None:
        self.served += 1
        if self._error is not None:
            raise self._error


def test_clients_are_served_again_and_again_also_beside_one_that_fails() -> None:
    idle, clients = IdleClients(every_s=0.01), [Client(RuntimeError("closed")), Client()]
    for client in clients:
        idle.add(client)
    assert Deadline(PATIENCE_S).wait_for(lambda: all(client.served > 2 for client in clients))


def test_the_thread_ends_with_the_last_client_and_begins_anew_with_the_next() -> None:
    idle = IdleClients(every_s=0.01)
    for _ in range(2):
        client = Client()
        idle.add(client)
        assert Deadline(PATIENCE_S).wait_for(lambda client=client: client.served > 0)  # type: ignore[misc]
        thread = idle._thread
        assert thread is not None
        del client
        gc.collect()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_fork_serves_no_client_of_its_parent_and_begins_though_the_lock_was_held() -> None:
    idle, of_the_parent = IdleClients(every_s=0.01), Client()
    idle.add(of_the_parent)
    with idle._lock:  # as the thread may hold it at the moment of the fork
        child = os.fork()
        if child == 0:
            signal.alarm(int(PATIENCE_S))  # ends one that waits for ever
            mine, before = Client(), of_the_parent.served
            idle.add(mine)
            served = Deadline(PATIENCE_S).wait_for(lambda: mine.served > 2)
            os._exit(0 if served and of_the_parent.served == before else 1)
    assert os.waitpid(child, 0)[1] == 0

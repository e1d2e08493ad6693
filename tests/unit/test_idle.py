"""The thread that serves idle clients: while they live, one after the other, whatever one of them raises."""

from __future__ import annotations

import gc

from eos.deadline import Deadline
from eos.kafka.idle import IdleClients


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
    assert Deadline(5).wait_for(lambda: all(client.served > 2 for client in clients))


def test_the_thread_ends_with_the_last_client_and_begins_anew_with_the_next() -> None:
    idle = IdleClients(every_s=0.01)
    for _ in range(2):
        client = Client()
        idle.add(client)
        assert Deadline(5).wait_for(lambda client=client: client.served > 0)  # type: ignore[misc]
        thread = idle._thread
        assert thread is not None
        del client
        gc.collect()
        thread.join(5)
        assert not thread.is_alive()

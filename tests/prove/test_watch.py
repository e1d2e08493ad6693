"""Requests that reach the proxies of several brokers at once, and the one process that a fault is for."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from eos.prove.fleet import Fleet
from eos.prove.instance import Instance, Worker
from eos.prove.request_watch import RequestWatch
from eos.prove.runtime import PROGRAM
from eos.testing.proxy import ApiKey, Edge, Frame
from tests.support.patience import PATIENCE_S

AT_ONCE = 3


class SlowFleet(Fleet):
    """Takes as long to find a process as a busy machine does."""

    def behind(self, port: int) -> tuple[Instance, Worker] | None:
        del port
        time.sleep(0.05)
        return self.instances[0], self.instances[0].whole


def test_requests_to_several_brokers_at_once_have_one_process_acted_on(tmp_path: Path) -> None:
    fleet = SlowFleet(["sleep", "600"], tmp_path, runtime=PROGRAM)
    fleet.start(0)
    watch = RequestWatch([], fleet)
    acted: list[Worker] = []

    def act(_: Instance, worker: Worker) -> bool:
        acted.append(worker)
        return True

    def send_when_watched() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (observer := watch.observer) is None and time.monotonic() < deadline:
            time.sleep(0.001)
        assert observer is not None
        observer(frame, Edge.REQUEST)

    frame = Frame(ApiKey.END_TXN, 3, correlation_id=1, client_id=None, payload=b"", body_at=0)
    proxies = [threading.Thread(target=send_when_watched) for _ in range(AT_ONCE)]
    try:
        for proxy in proxies:
            proxy.start()
        met = watch.met_at(ApiKey.END_TXN, Edge.REQUEST, act)
        for proxy in proxies:
            proxy.join(PATIENCE_S)
    finally:
        fleet.kill()
    assert met is not None
    assert len(acted) == 1

"""Wait until brokers that were started serve clients, processes and containers alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from eos.base.deadline import Deadline
from eos.kafka import brokers
from eos.local.ports import HOST

_ANSWER_TIMEOUT_S = 0.5  # between two questions it is seen whether the broker has ended


def wait_until_ready(
    ports: Mapping[int, int], cluster_id: str, *, check_alive: Callable[[int], None], deadline: Deadline
) -> int | None:
    """Wait until each of these brokers answers, and all of them are registered and unfenced.

    Args:
        ports: the client ports, by broker id. Other brokers of the cluster may be paused or fenced, and stay so.
        cluster_id: another cluster's broker may have taken a port.
        check_alive: called with the id of each broker that is not ready yet; raises if it has ended.
        deadline: for all of them.

    Returns:
        None, or the id of a broker that was not ready in time.
    """
    waiting = sorted(ports)

    def all_ready() -> bool:
        while waiting:
            seen = brokers.ask(HOST, ports[waiting[0]], min(_ANSWER_TIMEOUT_S, max(0.1, deadline.left_s)))
            if seen is None or seen.cluster_id != cluster_id or not ports.items() <= seen.ports.items():
                for broker_id in waiting:
                    check_alive(broker_id)
                return False
            del waiting[0]
        return True

    return None if deadline.wait_for(all_ready) else waiting[0]

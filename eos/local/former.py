"""Fence what a cluster that was killed has left registered, before its brokers start again.

A killed broker is still registered as the leader of its partitions. When it comes back alone, it loads the
transactions that it was ending from its log while that registration is valid, and cannot write their markers before it
serves clients; then the registration expires, for a moment no partition has a leader, and Kafka 4.3.0 to 4.4.0 take a
partition without a leader for a deleted one: the coordinator leaves the marker out and calls the transaction complete
(KAFKA-20734; tests/canaries/test_kafka_markers.py). Its records are then never stable.

So the controllers run alone first, with a session that expires at once. The brokers find no former self when they
start, and need not wait for its session to end either (DUPLICATE_BROKER_REGISTRATION).
"""

from __future__ import annotations

import re

from eos.errors import RetriableError
from eos.local.launch import Launch
from eos.local.layout import Layout
from eos.local.ports import HOST
from eos.local.properties import render
from eos.local.state import ClusterState
from eos.local.storage import METADATA_LOG
from eos.local.waiting import Deadline

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"  # a broker that ended in order leaves it in its data directory
FENCED = "Fencing broker"  # what the controller logs when a broker's session is over,
ACTIVE = "Activated periodic tasks"  # and when it has begun to look for such brokers
_FENCED_BROKER = re.compile(rf"{FENCED} (\d+) at epoch")
_NOTHING_LEFT_S = 2.0  # after the controller has become active: ten times the session
_FLUSH_S = 1.0  # the controller appends a no-op record twice a second
_END_GRACE_S = 5.0


def was_killed(layout: Layout, state: ClusterState) -> bool:
    """Whether a node of the cluster has run before and did not end in order."""
    data = [layout.data(node_id) for node_id in state.nodes]
    return any((one / METADATA_LOG).exists() and not (one / CLEAN_SHUTDOWN).exists() for one in data)


def fence_former(layout: Layout, state: ClusterState, deadline: Deadline) -> None:
    """Run the controllers of a cluster, all of whose nodes are down, until no broker is registered as alive.

    Raises:
        ConfigError: a controller ended. The message shows its last log lines.
        RetriableError: the deadline passed. The message shows the last log lines.
    """
    launch = Launch(layout, owned=True)  # nothing of this may stay, whatever happens
    try:
        for node_id in state.nodes:
            layout.controller_properties(node_id).write_text(_properties(layout, state, node_id))
            launch.start(state, node_id, layout.controller_properties(node_id))
        _wait_until_fenced(state, launch, deadline)
        _wait_until_written(layout, state)
    finally:
        launch.end(_END_GRACE_S)


def controller_only(listener: str) -> dict[str, str]:
    """The properties that make a node a controller alone, which expects no heartbeat of any broker.

    Args:
        listener: where the controller listens, with its name.
    """
    return {
        "process.roles": "controller",
        "listeners": listener,
        "advertised.listeners": listener,
        "broker.session.timeout.ms": "200",
        "broker.heartbeat.interval.ms": "50",
    }


def _properties(layout: Layout, state: ClusterState, node_id: int) -> str:
    """The node's own properties, and others over them: the last one counts."""
    listener = f"CONTROLLER://{HOST}:{state.nodes[node_id].ports.controller}"
    return layout.properties(node_id).read_text() + render(controller_only(listener))


def _wait_until_fenced(state: ClusterState, launch: Launch, deadline: Deadline) -> None:
    settled: Deadline | None = None

    def nobody_is_left() -> bool:
        nonlocal settled
        launch.check_alive()
        logs = [launch.log_since_start(node_id) for node_id in state.nodes]
        if settled is None and any(ACTIVE in text for text in logs):
            settled = Deadline(_NOTHING_LEFT_S)  # who was fenced before is not fenced again
        fenced = {int(number) for text in logs for number in _FENCED_BROKER.findall(text)}
        return fenced == set(state.nodes) or (settled is not None and settled.left_s == 0.0)

    if not deadline.wait_for(nobody_is_left):
        node_id = min(state.nodes)
        msg = f"the former brokers could not be fenced in time. {launch.last_words(node_id)}"
        raise RetriableError(msg)


def _wait_until_written(layout: Layout, state: ClusterState) -> None:
    """The controller says what it fences before the record is in its log; what is written next comes after it."""
    logs = [layout.data(node_id) / METADATA_LOG for node_id in state.nodes]

    def size() -> int:
        return sum(segment.stat().st_size for log in logs for segment in log.glob("*.log"))

    before = size()
    Deadline(_FLUSH_S).wait_for(lambda: size() > before)

"""ConsumerStatistics: when a consumer counts as connected."""

from __future__ import annotations

import json

import pytest

from eos.kafka.statistics import ConsumerStatistics

_COORDINATOR = {"nodeid": -1, "state": "UP"}


def _partition(broker: int, *, queued: int = 0, state: str = "active") -> dict[str, object]:
    return {
        "broker": broker,
        "fetch_state": state,
        "fetchq_cnt": queued,
        "rxmsgs": 0,
        "next_offset": 0,
        "ls_offset": -1001,
        "hi_offset": -1001,
    }


@pytest.mark.parametrize(
    ("brokers", "partitions", "connected", "unreached"),
    [
        pytest.param([], [], False, [], id="no broker"),
        pytest.param([_COORDINATOR], [], True, [], id="a member without partitions"),
        pytest.param(
            [_COORDINATOR], [_partition(-1, state="none")], True, [], id="a partition that is not fetched"
        ),
        pytest.param([_COORDINATOR], [_partition(-1)], False, [0], id="no partition has a broker"),
        pytest.param(
            [_COORDINATOR], [_partition(-1, queued=9)], True, [], id="records wait, so none is asked for"
        ),
        pytest.param(
            [_COORDINATOR, {"nodeid": 1, "state": "TRY_CONNECT"}],
            [_partition(1)],
            False,
            [0],
            id="their broker is away",
        ),
        pytest.param(
            [{"nodeid": 1, "state": "UP"}],
            [_partition(1), _partition(-1)],
            True,
            [1],
            id="one of two brokers is away",
        ),
    ],
)
def test_consumer_counts_as_connected_only_if_it_can_get_what_it_wants(
    brokers: list[dict[str, object]],
    partitions: list[dict[str, object]],
    connected: bool,
    unreached: list[int],
) -> None:
    statistics = ConsumerStatistics()
    statistics.read(
        json.dumps(
            {
                "brokers": {str(n): broker for n, broker in enumerate(brokers)},
                "topics": {"in": {"partitions": {str(n): marks for n, marks in enumerate(partitions)}}},
            }
        )
    )
    assert statistics.connected is connected
    assert sorted(partition.number for partition in statistics.unreached) == unreached


def test_consumer_is_outside_of_its_group_since_its_coordinator_is_away() -> None:
    statistics = ConsumerStatistics()
    seen = []
    for state in ("up", "wait-broker-transport", "query-coord", "up"):
        statistics.read(json.dumps({"brokers": {}, "topics": {}, "cgrp": {"state": state}}))
        seen.append(statistics.outside_since)
    assert seen[0] is None
    assert seen[1] is not None
    assert seen[2] == seen[1], "another state of the same absence"
    assert seen[3] is None

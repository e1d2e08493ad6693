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


def test_member_is_outside_of_its_group_while_it_asks_again_and_again_to_be_let_in() -> None:
    statistics = ConsumerStatistics()

    def outside(joins: int, join_state: str, assigned: int = 0) -> bool:
        group = {"state": "up", "join_state": join_state, "assignment_size": assigned}
        brokers = {"GroupCoordinator": {"nodeid": 1, "state": "UP", "req": {"JoinGroup": joins}}}
        statistics.read(json.dumps({"brokers": brokers, "topics": {}, "cgrp": group}))
        return statistics.outside_since is not None

    assert not outside(1, "wait-join"), "others take long to come back"
    assert not outside(2, "wait-sync"), "without a name, the first join takes two"
    assert not outside(2, "steady")
    assert not outside(4, "wait-join"), "both rounds of a rebalance"
    assert outside(5, "init")
    since = statistics.outside_since
    assert outside(6, "wait-join")
    assert statistics.outside_since == since
    assert not outside(7, "steady")
    assert not outside(11, "init", assigned=2), "it goes on with what it has"

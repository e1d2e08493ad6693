"""ConsumerStatistics: what librdkafka last reported of a consumer's brokers, its queue and its partitions."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import NamedTuple

from eos.offsets import Partition

# Asking a broker for watermarks waits behind the fetch in flight on the same connection, up to fetch.wait.max.ms
# per partition (measured: 0.5 s each); the statistics hold what the last fetch brought.
INTERVAL_MS = 2_000

_IN_GROUP = "up"  # the coordinator is known and connected; see rd_kafka_cgrp_state_names
_MEMBER = "steady"  # of rd_kafka_cgrp_join_state_names
_REFUSED_JOINS = 3  # in a row: a rebalance takes two, and so does the first one of a member without a name
_NONE = -1  # the broker of a partition without one, and the number of a broker that is not learned yet


class Watermarks(NamedTuple):
    """The last stable offset and the end of the log."""

    lso: int
    high: int


class FetchState(NamedTuple):
    """How far librdkafka has fetched a partition: the records received, and the next offset to ask for (-1 if unknown)."""

    received: int
    next_offset: int


NOT_FETCHED = FetchState(0, -1)


class ConsumerStatistics:
    """The last statistics of a consumer.

    Attributes:
        count: how many have come.
        queue_length: records that waited to be consumed when the last ones were taken.
        connected: whether a broker was connected, and one of those that the consumer fetches from if it wants records.
        watermarks: as the last fetches brought them, by partition.
        fetch_states: how far each partition has been fetched.
        unreached: the partitions whose records are wanted and whose broker is not connected; since when, by time.monotonic().
        outside_since: since when the coordinator of the group is not connected, or refuses this member, by time.monotonic(); None:
            neither, or none is asked.
    """

    def __init__(self) -> None:
        self.count = self.queue_length = 0
        self.connected = False
        self.watermarks: dict[Partition, Watermarks] = {}
        self.fetch_states: dict[Partition, FetchState] = {}
        self.unreached: dict[Partition, float] = {}
        self.outside_since: float | None = None
        self._joins = 0  # requests to join, up to when it was a member

    def read(self, text: str) -> None:
        """Take over a report, as far as it has the form of those that are known."""
        self.connected = False
        with suppress(ValueError, KeyError, TypeError):
            report = json.loads(text)
            up = {broker["nodeid"] for broker in report["brokers"].values() if broker["state"] == "UP"}
            # Metadata without brokers can leave the group's coordinator connected and each partition without any broker
            # (librdkafka 2.16). One whose queue holds records is not fetched, and its connection may be closed as idle.
            wanted = {
                Partition(topic, int(number)): marks["broker"]
                for topic, found in report["topics"].items()
                for number, marks in found["partitions"].items()
                if marks["fetch_state"] == "active" and not marks["fetchq_cnt"]
            }
            reached = up - {_NONE}
            self.connected = bool(reached.intersection(wanted.values()) if wanted else up)
            now = time.monotonic()
            self.unreached = {p: self.unreached.get(p, now) for p, at in wanted.items() if at not in reached}
            group = report.get("cgrp", {})
            joins = sum(broker.get("req", {}).get("JoinGroup", 0) for broker in report["brokers"].values())
            if group.get("join_state", _MEMBER) == _MEMBER or group.get("assignment_size"):
                self._joins = joins
            refused = joins - self._joins >= _REFUSED_JOINS
            outside = refused or group.get("state", _IN_GROUP) != _IN_GROUP
            self.outside_since = (self.outside_since or now) if outside else None
            self.count, self.queue_length = self.count + 1, 0
            for topic, found in report["topics"].items():
                for number, marks in found["partitions"].items():
                    partition = Partition(topic, int(number))
                    # Of the one queue that all partitions share.
                    self.queue_length = max(self.queue_length, marks["fetchq_cnt"])
                    self.fetch_states[partition] = FetchState(marks["rxmsgs"], marks["next_offset"])
                    if marks["ls_offset"] >= 0:
                        self.watermarks[partition] = Watermarks(marks["ls_offset"], marks["hi_offset"])

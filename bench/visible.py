"""What a read_committed reader sees of an output, and when."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from bench.topics import PARTITIONS

DEADLINE_SECONDS = 90.0


@dataclass(frozen=True)
class Seen:
    """Attributes: the partition, when it was appended (the broker's ms), and when it was seen (monotonic)."""

    partition: int
    append_ms: int
    at: float


class Visible:
    """Reads an output from its beginning. Call `until` again and again: it reads on."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.seen: list[Seen] = []
        self._topic = topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{topic}-reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
            }
        )
        self._consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(PARTITIONS)])

    def until(self, done: Callable[[Seen | None], bool]) -> None:
        """Read until ``done`` says so of a record, or of None while there is none.

        Raises:
            TimeoutError: it did not in time.
        """
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            message = self._consumer.poll(0.005)
            one = None
            if message is not None and message.error() is None:
                one = Seen(message.partition() or 0, message.timestamp()[1], time.monotonic())
                self.seen.append(one)
            if done(one):
                return
        msg = f"{self._topic}: what was waited for was not seen within {DEADLINE_SECONDS} s"
        raise TimeoutError(msg)

    def for_seconds(self, seconds: float) -> None:
        """Read for so long."""
        until = time.monotonic() + seconds
        self.until(lambda _: time.monotonic() >= until)

    def longest_silence(self, partition: int, since: float) -> float:
        """The longest time between two records of a partition, from the last one seen before ``since`` on; seconds."""
        moments = [one.at for one in self.seen if one.partition == partition]
        before = [moment for moment in moments if moment <= since][-1:]
        after = [moment for moment in moments if moment > since]
        line = [*before, *after]
        return max((later - earlier for earlier, later in itertools.pairwise(line)), default=0.0)

    def close(self) -> None:
        self._consumer.close()

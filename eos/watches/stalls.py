"""StallWatch: notices a partition that holds records to read and brings none although it is being fetched.

librdkafka retries for ever if a broker answers a partition's fetches with an error. Of some errors (an unknown one,
UNSUPPORTED_COMPRESSION_TYPE) the application gets an event, which looks like any other that passes by itself; of others
(KAFKA_STORAGE_ERROR, UNKNOWN_LEADER_EPOCH, INCONSISTENT_TOPIC_ID) nothing at all, not even a log line. So the progress is
watched: the leader is asked for the last stable offset of each partition that does not move, by another client.

Not a stall: a partition at its last stable offset, however far the high watermark is (another's open transaction); records
that wait in the consumer's queue behind those of other partitions (back-pressure: time counts only while the queue is gone
through); a leader that does not answer (an outage, which is waited for); a process that was paused.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

from eos.base.calls import Call
from eos.core.surroundings import Seat, Watch
from eos.errors import EosError, UnavailableError
from eos.events import CallRetried, PartitionStalled
from eos.kafka.admin import Admin, AskedOffsets, Mark, shared_admin
from eos.kafka.consumer import ConsumerClient
from eos.kafka.statistics import FetchState
from eos.offsets import OffsetVector, Partition

_LOOKS = 12  # in the time after which a stall ends the job
_WARN_AFTER_LOOKS = 3
# librdkafka connects without any pause to a broker that is away, as long as it is asked something (2.16: each change of its state
# schedules another connection at once; 0.7 of a core). So it is asked seldom, and shortly, if the consumer does not reach it either.
_AWAY_LOOKS = 6
_AWAY_S = 1.0
_LEADER_S = 2.0  # for the name of a broker, as the last thing of all


@dataclass(slots=True)
class _Seen:
    progress: tuple[int, FetchState]
    turnovers: int
    behind: bool = False
    seconds: float = 0.0  # that it has been behind and has not moved
    warned: bool = False


class StallWatch(Watch):
    """Watches the partitions of one consumer.

    Args:
        seat: the consumer's; ``input.stall_timeout_ms``.
    """

    def __init__(self, seat: Seat) -> None:
        self._settings = seat.settings
        self._limit_s = seat.settings.input.stall_timeout_s
        self._every_s = self._limit_s / _LOOKS
        self._shard = seat.shard
        self._listener = seat.listener
        self._looked_at = time.monotonic()
        self._seen: dict[Partition, _Seen] = {}
        self._admin: Admin | None = None  # kept, so that it is shared
        self._asked: list[AskedOffsets] = []
        self._looks = 0
        self._turnovers = 0  # how often all that was queued has been consumed
        self._measured = 0  # the statistics that the next line was taken from
        self._left: int | None = None  # of what was queued then
        self._failures = 0
        self._last_error = ""

    def consumed(self, client: ConsumerClient, count: int, *, asked: int) -> None:
        """A consume call brought so many records and events."""
        if self._left is None:
            number, length = client.queue_length()
            if number != self._measured:
                self._measured, self._left = number, length
        else:
            self._left -= count
        if count < asked or (self._left is not None and self._left <= 0):
            self._turnovers += 1
            self._left = None

    def failed(self, error: EosError) -> None:
        """A consume call brought an error that librdkafka goes on after."""
        self._failures += 1
        self._last_error = str(error)
        self._listener(CallRetried(self._shard, Call.CONSUME, self._failures, self._last_error))

    def look(self, client: ConsumerClient, owned: OffsetVector) -> str:
        """Look after the partitions if it is time to, and none of them is to wait for others.

        Raises:
            UnavailableError: a partition has stalled for ``input.stall_timeout_ms``.
        """
        now = time.monotonic()
        elapsed = now - self._looked_at
        if elapsed >= self._every_s and not client.some_wait:
            self._looked_at = now
            self._look(client, owned, elapsed)
        return ""

    def _look(self, client: ConsumerClient, owned: OffsetVector, elapsed: float) -> None:
        self._looks += 1
        marks = {partition: lso for asked in self._asked for partition, lso in asked.answers().items()}
        still = []
        for partition, position in owned.merged(client.positions(owned)).items():
            if not self._moved(partition, (position, client.fetch_state(partition))):
                still.append(partition)
                # A process that stood still saw nothing of the time in between.
                self._judge(partition, position, marks.get(partition), min(elapsed, 2 * self._every_s))
        for gone in self._seen.keys() - owned.keys():
            del self._seen[gone]
        reached = [partition for partition in still if not client.unreached_s(partition)]
        self._asked = self._ask(reached, self._every_s)
        if self._looks % _AWAY_LOOKS == 0:
            self._asked += self._ask(list(set(still).difference(reached)), _AWAY_S)

    def _ask(self, partitions: list[Partition], timeout_s: float) -> list[AskedOffsets]:
        if not partitions:
            return []
        if self._admin is None:
            self._admin = shared_admin(self._settings)
        return [self._admin.ask_offsets_at(Mark.LAST_STABLE, partitions, timeout_s)]

    def _moved(self, partition: Partition, progress: tuple[int, FetchState]) -> bool:
        before = self._seen.get(partition)
        if before is not None and before.progress == progress:
            return False
        self._seen[partition] = _Seen(progress, self._turnovers)
        if before is not None and before.warned:
            self._listener(PartitionStalled(self._shard, partition, progress[0], progress[0], 0.0))
        return True

    def _judge(self, partition: Partition, position: int, lso: int | None, elapsed: float) -> None:
        seen = self._seen[partition]
        if lso is None:
            return
        reached = max(position, seen.progress[1].next_offset)
        turned, seen.turnovers = self._turnovers > seen.turnovers, self._turnovers
        was_behind, seen.behind = seen.behind, lso > reached
        if not (was_behind and seen.behind and turned):
            return
        seen.seconds += elapsed
        if seen.seconds < _WARN_AFTER_LOOKS * self._every_s:
            return
        seen.warned = True
        self._listener(
            PartitionStalled(self._shard, partition, position, lso, seen.seconds, self._last_error)
        )
        if seen.seconds >= self._limit_s:
            raise UnavailableError(self._text(partition, position, lso, seen.seconds))

    def _text(self, partition: Partition, position: int, lso: int, seconds: float) -> str:
        leader = ""
        with suppress(EosError):
            leader = shared_admin(self._settings).leaders([partition.topic], _LEADER_S).get(partition, "")
        said = f"; the last error of a fetch: {self._last_error}" if self._last_error else ""
        return (
            f"{partition} has brought no record for at least {seconds:.0f} s (input.stall_timeout_ms), though it holds records from "
            f"offset {position} up to its last stable offset {lso}, and its leader answers: its fetches fail{said}. Nothing is "
            "lost; a later start goes on from the committed offsets. Fix: look for this partition in the log of "
            f"{leader or 'the broker'} that leads it (eos status names it too), for example for errors of its disk"
        )

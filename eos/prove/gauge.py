"""Gauge: how far the job is, as the cluster shows it: high watermarks, last stable offsets, committed offsets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from eos.base.deadline import Deadline
from eos.errors import EosError
from eos.kafka.admin import Admin, Mark
from eos.offsets import Partition
from eos.ops.verifier.logs import LogReader, Range
from eos.settings import Settings

Places = Callable[[Sequence[Partition]], Mapping[Partition, int]]

_EVERY_S = 1.0
CALL_S = 3.0
_READ_S = 30.0
_END_S = 30.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. ``at_s``: seconds since the trial began. The others count offsets, over all partitions."""

    at_s: float
    lag: int  # input: high watermark less committed offset
    input_held_back: int  # input: high watermark less last stable offset
    output_held_back: int  # outputs: the same, so records that no reader of committed records sees yet
    committed: int = 0  # input: committed offsets

    @property
    def left(self) -> int:
        """What is still to be done: 0 if all input is committed and no transaction is open any more."""
        return self.lag + self.input_held_back + self.output_held_back


class Gauge:
    """Looks every second, in a thread; a cluster that does not answer is looked at again later.

    Args:
        settings: the brokers' own addresses.
        group: the job's.
        inputs: every input partition.
        outputs: every output partition.
        places: where the job is in partitions; of one that it has not begun, nothing.

    Attributes:
        samples: the looks so far.
        inputs: every input partition; another list where some are added.
    """

    def __init__(
        self,
        settings: Settings,
        group: str,
        inputs: Sequence[Partition],
        outputs: Sequence[Partition],
        *,
        places: Places,
    ) -> None:
        self.samples: list[Sample] = []
        self._places = places
        self._settings = settings
        self._group = group
        self.inputs = inputs
        self._outputs = outputs
        self._admin = Admin.of(settings)
        self._began = time.monotonic()
        self.looking = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="eos-prove-gauge", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join(_END_S)

    @property
    def speed(self) -> float:
        """Offsets of input that the job has committed in a second, of the whole time so far; 0 before its first commit."""
        last = self.samples[-1] if self.samples else None
        return 0.0 if last is None else last.committed / max(last.at_s, 1.0)

    def unread(self, partitions: Sequence[Partition] | None = None) -> int:
        """How many offsets are behind the committed ones, of those partitions in which a committed record is among them.

        Markers and aborted records need no commit: a consumer that reads committed records never sees them.

        Raises:
            EosError: the cluster did not answer in time.
        """
        asked = self.inputs if partitions is None else partitions
        stored = self._places(asked)
        ends = self._admin.offsets_at(Mark.LAST_STABLE, asked, CALL_S)
        starts = self._admin.offsets_at(Mark.START, asked, CALL_S)
        rest = {p: Range(max(starts[p], stored.get(p, 0)), end) for p, end in ends.items()}
        with LogReader(self._settings, self._group, Deadline(_READ_S)) as log:
            found = {Partition(one.topic, one.partition) for one in log.records(rest, first_only=True)}
        return sum(rest[p].end - rest[p].start for p in found)

    def look(self) -> Sample:
        """One look, now.

        Raises:
            EosError: the cluster did not answer in time.
        """
        inputs = self.inputs
        both = [*inputs, *self._outputs]
        stored = self._places(inputs)
        # The high watermarks are asked last: nothing seems to be done that is not.
        lsos = self._admin.offsets_at(Mark.LAST_STABLE, both, CALL_S)
        ends = self._admin.offsets_at(Mark.HIGH_WATERMARK, both, CALL_S)
        return Sample(
            time.monotonic() - self._began,
            sum(ends[p] - stored.get(p, 0) for p in inputs),
            sum(ends[p] - lsos[p] for p in inputs),
            sum(ends[p] - lsos[p] for p in self._outputs),
            sum(stored.values()),
        )

    def _look_on(self) -> None:
        while not self._over.wait(_EVERY_S):
            try:
                self.samples.append(self.look())
            except EosError:
                continue

"""Coordinators: what they have written down of each transaction, read from their own log while a trial runs.

The log is the topic __transaction_state: a record for each state that a transactional.id takes. No client stands between it and
the count of faults: what did not happen to a transaction there did not happen.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from threading import Lock
from typing import Any

from eos.base.deadline import Deadline
from eos.errors import ConfigError, EosError
from eos.kafka.admin import Mark
from eos.offsets import Partition
from eos.ops.verifier.logs import LogReader, Range
from eos.prove.log import TRANSACTIONS
from eos.settings import Settings

_LOOK_S = 10.0
_ONGOING, _PREPARE_COMMIT, _PREPARE_ABORT = 1, 2, 3
_FLEXIBLE_FROM = 1  # version of the values
_NONE = -1
_MORE = 0x80  # in a number of variable length


@dataclass(slots=True)
class LoggedTransaction:
    """One transaction. Times in milliseconds since the epoch, by the coordinator's clock.

    Attributes:
        transactional_id: its own.
        began_ms: when its first partition was added.
        timeout_ms: after which the coordinator aborts it.
        decided_ms: when its end was decided; None: it is open.
        committed: whether that was a commit.
    """

    transactional_id: str
    began_ms: int
    timeout_ms: int
    decided_ms: int | None = None
    committed: bool = False

    @property
    def expired(self) -> bool:
        """Whether it was aborted after its time: its owner had not ended it."""
        return self.decided_ms is not None and not self.committed and self.decided_ms >= self.expires_ms

    @property
    def expires_ms(self) -> int:
        """From when on the coordinator may abort it."""
        return self.began_ms + self.timeout_ms

    def open_at(self, at_ms: float) -> bool:
        """Whether it had begun then, and was not decided."""
        return self.began_ms <= at_ms and (self.decided_ms is None or self.decided_ms >= at_ms)


class Coordinators:
    """Their log so far: each look reads on.

    Args:
        settings: the brokers' own addresses.
        group: one that may be read.
    """

    def __init__(self, settings: Settings, group: str) -> None:
        self._settings, self._group = settings, group
        self._read_to: dict[Partition, int] = {}
        self._by_id: defaultdict[str, dict[int, LoggedTransaction]] = defaultdict(dict)
        self._looking = Lock()

    def look(self) -> None:
        """Read what is new. A cluster without a transaction has no such log yet.

        Raises:
            UnavailableError: no answer in time.
        """
        with self._looking, LogReader(self._settings, self._group, Deadline(_LOOK_S), committed=False) as log:
            try:
                partitions = log.partitions([TRANSACTIONS])
            except ConfigError:
                return
            ends = log.offsets_at(Mark.HIGH_WATERMARK, partitions)
            ranges = {p: Range(self._read_to.get(p, 0), ends[p]) for p in partitions}
            for record in log.records(ranges):
                if record.key is not None and record.value is not None:
                    self._take(record.key, record.value)
            self._read_to.update(ends)

    def of(self, ids: Collection[str]) -> list[LoggedTransaction]:
        """The transactions of these ids, oldest first; as of the last look."""
        found = [one for name in ids for one in list(self._by_id[name].values())]
        return sorted(found, key=lambda one: one.began_ms)

    def inside(self, ids: Collection[str], at_ms: float) -> LoggedTransaction | None:
        """The transaction of one of these ids that was open then; as of the last look."""
        return next((one for one in self.of(ids) if one.open_at(at_ms)), None)

    def looked(self, ids: Collection[str]) -> list[LoggedTransaction]:
        """The transactions of these ids, after a look; none if the cluster does not answer."""
        try:
            self.look()
        except EosError:
            return []
        return self.of(ids)

    @property
    def longest_timeout_s(self) -> float:
        """Of all transactions so far: a program need not have the timeout that the settings name."""
        every = (one.timeout_ms for of in list(self._by_id.values()) for one in list(of.values()))
        return max(every, default=0) / 1000

    def _take(self, key: bytes, value: bytes) -> None:
        state = state_of(key, value)
        if state is None or state.status not in (_ONGOING, _PREPARE_COMMIT, _PREPARE_ABORT):
            return
        of_id = self._by_id[state.transactional_id]
        one = of_id.setdefault(
            state.began_ms, LoggedTransaction(state.transactional_id, state.began_ms, state.timeout_ms)
        )
        if (
            state.status != _ONGOING and one.decided_ms is None
        ):  # a coordinator that is elected may write it again
            one.decided_ms, one.committed = state.updated_ms, state.status == _PREPARE_COMMIT


@dataclass(frozen=True, slots=True)
class LoggedState:
    """A record of the log: the state that a transactional.id has taken."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    status: int
    updated_ms: int
    began_ms: int


def state_of(key: bytes, value: bytes) -> LoggedState | None:
    """What a record of the log says (TransactionLogKey, TransactionLogValue); None: of a version that is not known here."""
    (key_version,) = struct.unpack_from(">h", key)
    (version,) = struct.unpack_from(">h", value)
    if key_version != 0 or version not in (0, _FLEXIBLE_FROM):
        return None
    (length,) = struct.unpack_from(">h", key, 2)
    fields = _Value(value, flexible=version >= _FLEXIBLE_FROM)
    producer_id, epoch, timeout_ms, status = fields.unpack(">qhib")
    fields.skip_partitions()
    updated_ms, began_ms = fields.unpack(">qq")
    return LoggedState(
        key[4 : 4 + length].decode(), producer_id, epoch, timeout_ms, status, updated_ms, began_ms
    )


class _Value:
    """A cursor over the fields of a value, in the old form or in the flexible one."""

    def __init__(self, value: bytes, *, flexible: bool) -> None:
        self._value, self._flexible, self._at = value, flexible, 2

    def unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self._value, self._at)
        self._at += struct.calcsize(layout)
        return values

    def skip_partitions(self) -> None:
        for _ in range(self._length(">i")):
            self._skip(self._length(">h"))  # topic
            self._skip(4 * self._length(">i"))
            self._skip_tags()

    def _length(self, layout: str) -> int:
        return max(0, (self._number() - 1) if self._flexible else self.unpack(layout)[0])

    def _skip_tags(self) -> None:
        for _ in range(self._number() if self._flexible else 0):
            self._number()
            self._skip(self._number())

    def _skip(self, length: int) -> None:
        self._at += length

    def _number(self) -> int:
        value = shift = 0
        while True:
            byte = self._value[self._at]
            self._at += 1
            value |= (byte & ~_MORE) << shift
            if byte < _MORE:
                return value
            shift += 7

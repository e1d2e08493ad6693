"""Suspects: input that its owners did not get past, because a record of it may have ended their processes.

A process that dies writes nothing, so an owner announces an attempt *before* it works: it commits the offset that it has found
once more, with the number of the attempt in the offset's metadata. A record is in work while its transform runs and at no other
time: where the search goes on (attempt 2 and later), the announcement is taken back as soon as the transform has returned, and
before anything is produced. So an owner that waits for a commit, and is ended meanwhile, has not died with the record. One that
ends by its own code takes back what it has announced. An owner announces only where something points to a death: it
replaces a worker that was killed, the offset it has found was committed long ago though input waits behind it, its last owner has
committed nothing but that takeover (``ownership.mode = "partition"``), or that offset announces an attempt already. So an
ordinary takeover costs nothing, and nothing is written between commits.

Each death with the same input leads one step further. For a minute, commits behind it say how far the search is, but not how often
one record was met alone: that is counted when the record has come, at its own offset, and for no other one, should it be gone.
Later commits, the end of the input, and an end in order take the number back:

====  =====================================================================================
1     the input was taken up as ever
2     in transactions of a few records, with nothing transformed ahead of a commit
3 …   record by record, each alone in its transaction, while all other partitions wait
====  =====================================================================================

None of these harms a record. Only the record that ``poison.max_deaths`` processes in a row died with, each alone with it, is
left to ``poison.policy``. A process that is killed for another reason leaves the same trace: so a healthy record would have
to be hit so often in the hundredths of a second that it takes, and each further attempt waits for a moment of chance before.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition

# A process that dies in the second attempt dies with one of so many records, so the next ones take so many one by one.
FEW_RECORDS = 200
_FEW, _ALONE = 2, 3  # the attempts at which a record is looked for so
# A job has committed within this time if its input comes; what died in less is replaced by its supervisor.
_LONG_AGO_S = 60.0
# For how long either goes on where nothing is found, alone with each partition: longer than what an ordinary transaction holds
# takes so. A record that takes as long may be in any partition, so none gives up its time to one that is read before it.
_LOOK_S = 60.0
_draw = random.SystemRandom()  # a job may seed Python's own, and all its instances would wait alike
_PAUSE_S = (
    1.0,
    3.0,
)  # before a further attempt at a record alone: it shall not be at a fixed time behind a start

log = logging.getLogger("eos.crashes.suspects")


@dataclass(slots=True)
class _Suspect:
    offset: int
    found: int  # the attempt that is announced at the offset by others, that died; 0: none
    attempt: int  # this owner's
    said: int  # what a commit of this offset says
    stored: int  # what the group may have stored by the commits that were sent
    alone: int = 0  # how many records are still to be taken alone

    @property
    def announced(self) -> bool:
        return self.said >= self.attempt

    @property
    def unannounced_said(self) -> int:
        return self.found or (_FEW if self.alone else 0)


class Suspects:
    """What one owner knows of the attempts at its input.

    Args:
        max_deaths: how often a record may end a process that is alone with it; 0: nothing is counted.
        owner: this owner's token.
        replaces_dead: this process replaces one that a signal has ended.
    """

    def __init__(self, max_deaths: int, owner: str, *, replaces_dead: bool) -> None:
        self._max_deaths = max_deaths
        self._owner = owner
        self._replaces_dead = replaces_dead
        self._by_partition: dict[Partition, _Suspect] = {}
        self._look_until = 0.0
        self._looking = False
        self.few_at_a_time = False
        # The one whose records are taken one by one, while all others wait.
        self.alone: frozenset[Partition] = frozenset()

    def __bool__(self) -> bool:
        return bool(self._by_partition)

    def taken_over(self, stored: Mapping[Partition, Committed | None]) -> None:
        """Partitions were taken over with these committed offsets."""
        looked_at: dict[str, list[str]] = {}
        for partition, committed in stored.items() if self._max_deaths else ():
            self._by_partition.pop(partition, None)
            offset = committed.offset if committed is not None else 0
            metadata = _parsed(committed)
            found = metadata.attempt if metadata is not None else 0
            if metadata is not None and found and metadata.owner == self._owner:
                # It was lost, and has come back: this owner lives.
                one = _Suspect(offset, found - 1, found, said=found, stored=found)
            elif (
                found
                or self._replaces_dead
                or (metadata is not None and _led_to_nothing(metadata, partition))
            ):
                one = _Suspect(offset, found, found + 1, said=found, stored=found)
            else:
                continue
            self._by_partition[partition] = one
            self.look_on()
            if one.attempt >= _ALONE:
                one.alone = FEW_RECORDS
            if one.attempt >= _FEW:
                how = "one by one" if one.alone else "a few at a time"
                looked_at.setdefault(how, []).append(
                    f"{partition} from offset {offset} (attempt {one.attempt})"
                )
        for how, where in looked_at.items():
            log.warning(
                "input that owners have died with, or did not get past: %s. Its records are taken %s for now",
                ", ".join(where),
                how,
            )
        self.look()

    def attempt_at(self, partition: Partition, offset: int) -> int:
        """What a commit of this offset says."""
        one = self._by_partition.get(partition)
        if one is None:
            return 0
        if offset <= one.offset:
            return one.said
        # Also in ordinary transactions: what ends a process by a limit of time lets the input before it be committed, batch by
        # batch, and each life would get nearer to the record without one step further.
        return min(one.attempt, _FEW) if self._looking else 0

    def committed(self, stored: Mapping[Partition, Committed | None]) -> None:
        """These offsets were committed, and say what was to be said when their commit was sent: it may have had no answer since."""
        for partition, committed in stored.items() if self._by_partition else ():
            one, offset = self._by_partition.get(partition), committed.offset if committed is not None else 0
            if one is None or offset < one.offset:
                continue
            metadata = _parsed(committed)
            said = metadata.attempt if metadata is not None else 0
            if offset == one.offset:
                one.stored = said
                continue
            alone = max(0, one.alone - 1)
            if said:
                self._by_partition[partition] = _Suspect(
                    offset, 0, _ALONE if alone else said, said, stored=said, alone=alone
                )
            else:
                del self._by_partition[partition]
        self.look()

    def unannounced(self, partition: Partition) -> frozenset[Partition]:
        """Whose offsets are to be committed once more before input of this partition is transformed.

        The first input of any partition is taken for that of all, so that a takeover costs one commit at most. Not where
        records are taken alone: an attempt is counted there for a record that has come.
        """
        return frozenset(
            p
            for p, one in self._by_partition.items()
            if not one.announced and (p == partition or one.attempt < _ALONE) and not self.deaths(p)
        )

    def pause_s(self, partitions: Collection[Partition]) -> float:
        """How long to wait before that."""
        again = any(self._by_partition[partition].found >= _ALONE for partition in partitions)
        return _draw.uniform(*_PAUSE_S) if again else 0.0

    def met_alone(self, partition: Partition, offset: int) -> None:
        """The next record of the partition whose records are taken alone has come: attempts are counted at its own offset.

        Behind the committed one stand control records, aborted records, and what compaction has removed since: also the record
        that attempts were counted for.
        """
        one = self._by_partition[partition]
        if offset > one.offset:
            one.offset = offset
            if one.found >= _ALONE:
                one.found, one.attempt, one.said = _FEW, _ALONE, _FEW

    def announce(self, partitions: Iterable[Partition], *, announced: bool = True) -> None:
        """The next commit of the offsets of these partitions says that their input is attempted; or it does not."""
        for partition in partitions:
            one = self._by_partition[partition]
            one.said = one.attempt if announced else one.unannounced_said
            if announced:
                one.stored = one.said

    def returned(self) -> frozenset[Partition]:
        """The transform of what was announced has returned; returns the partitions whose offsets are to be committed once more.

        An attempt that goes through ordinary transactions stays announced: its death need not be with the first of them.
        """
        over = frozenset(p for p, one in self._by_partition.items() if one.announced and one.attempt >= _FEW)
        for partition in over:
            one = self._by_partition[partition]
            # A record that was transformed has ended the row of deaths with it; the search for another one goes on.
            one.found, one.attempt = min(one.found, _FEW), min(one.attempt, _ALONE)
            one.said = one.unannounced_said
        return over

    def deaths(self, partition: Partition) -> int:
        """How many processes in a row died alone with the partition's next record, if the policy is to decide on it; else 0."""
        one = self._by_partition.get(partition)
        deaths = 0 if one is None else one.found - _FEW
        return deaths if deaths >= self._max_deaths > 0 else 0

    def withdraw(self, partitions: Iterable[Partition]) -> frozenset[Partition]:
        """This owner gives these partitions up in order; returns those whose offsets are to be committed once more for that."""
        announced = []
        for partition in partitions:
            one = self._by_partition.get(partition)
            if one is not None:
                if one.stored != one.found:
                    announced.append(partition)
                self._by_partition[partition] = _Suspect(
                    one.offset, one.found, 0, one.found, stored=one.stored
                )
        self.look()
        return frozenset(announced)

    def finished(self, partitions: Iterable[Partition]) -> frozenset[Partition]:
        """These were read to their end without harm; returns those whose offsets are to be committed once more for that."""
        ended = self._by_partition.keys() & set(partitions)
        said = frozenset(p for p in ended if self.attempt_at(p, self._by_partition[p].offset))
        self.forget(ended)
        return said

    def forget(self, partitions: Iterable[Partition]) -> None:
        """These partitions are gone."""
        for partition in partitions:
            self._by_partition.pop(partition, None)
        self.look()

    def look_on(self) -> None:
        """The time begins now: until now, others were looked at."""
        self._look_until = time.monotonic() + _LOOK_S

    def look(self) -> None:
        """Look whether the time is over for which records are taken in few or alone; call it now and then."""
        if time.monotonic() >= self._look_until:
            for partition in self.alone & self._by_partition.keys():
                one = self._by_partition[partition]
                one.alone = 0
                if not one.announced and not one.found:
                    one.attempt = one.said
                elif not one.announced:  # its input has not come: what is stored still says so
                    del self._by_partition[partition]
            if any(one.alone for one in self._by_partition.values()):
                self.look_on()
        self._looking = looking = time.monotonic() < self._look_until
        for partition, one in list(self._by_partition.items()) if not looking else ():
            if one.attempt >= _FEW and not one.announced:
                del self._by_partition[partition]
        self.few_at_a_time = looking and any(one.attempt >= _FEW for one in self._by_partition.values())
        # First where most have died; the time of the next one begins when it is its turn.
        waiting = sorted((-one.found, p) for p, one in self._by_partition.items() if one.alone)
        alone = frozenset(p for _, p in waiting[:1])
        if alone and self.alone and alone != self.alone:
            self.look_on()
        self.alone = alone


def _parsed(stored: Committed | None) -> OffsetMetadata | None:
    return None if stored is None else OffsetMetadata.parse(stored.metadata)


def _led_to_nothing(metadata: OffsetMetadata, partition: Partition) -> bool:
    """Whether the commit is long ago, or that of a takeover: an owner by partition commits what it has found, and anew each time."""
    taken_over = metadata.mode is OwnershipMode.PARTITION and metadata.shard == str(partition)
    return time.time() - metadata.at_s > _LONG_AGO_S or (taken_over and metadata.commit == 1)

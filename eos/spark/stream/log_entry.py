"""The entry of a shard in the commit log, and the text that it is stored as: the metadata of a committed offset."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from eos.group.metadata import OffsetMetadata, OwnershipMode

_FORM = re.compile(
    r"(eos1 .*) query=(\S+) shards=(\d+) was=(\d+) rows=(\d+) digest=([0-9a-f]{16})"
    r"(?: marks=(\d+))?(?: input=([0-9a-f]{16}))?(?: run=([0-9a-f-]{36}))?( in-place)?(?: on=([A-Za-z0-9._-]+))?",
    re.ASCII,
)
_WORD = 1 << 64
_GIVEN_UP_FOR = "given-up-for:"  # in the place of a query's id


@dataclass(frozen=True, slots=True)
class Division:
    """How the rows of a batch are divided into shards.

    Args:
        shards: how many there are.
        in_place: a shard is an input partition, whose rows are written by the task that read them; if not, rows are shuffled by key.
        moved_by: why they are shuffled, for a person.
        partitions: how many shards there could be in place; 0 if rows leave the task that read them.
    """

    shards: int
    in_place: bool = False
    moved_by: str = field(default="", compare=False)
    partitions: int = field(default=0, compare=False)

    def __str__(self) -> str:
        if self.in_place:
            return f"in place, one shard for each of {self.shards} input partitions"
        return f"shuffled by key to {self.shards} shards{f', by {self.moved_by}' if self.moved_by else ''}"


@dataclass(frozen=True, slots=True)
class Checksum:
    """How many rows, and the sum of their hashes: the same for the same rows in any order.

    Args:
        rows: how many.
        digest: the sum.
        input: a digest of the offsets between which the batch's input lies; "" if that is not known. Rows that are missing may
            all be of other shards, so the rows of this one do not show that another part of the input was read.
    """

    rows: int = 0
    digest: int = 0
    input: str = ""

    def plus(self, rows: int, digest: int) -> Checksum:
        """With more rows; ``digest`` may be negative, as Spark's hashes are."""
        return replace(self, rows=self.rows + rows, digest=(self.digest + digest) % _WORD)

    def __str__(self) -> str:
        return f"{self.rows} rows ({self.digest:016x}{f' of input {self.input}' if self.input else ''})"


@dataclass(slots=True)
class RunningChecksum:
    """The checksum of the rows that passed so far."""

    now: Checksum = field(default_factory=Checksum)

    def add(self, rows: int, digest: int) -> None:
        """Count more rows."""
        self.now = self.now.plus(rows, digest)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """What the commit log says of one shard.

    Args:
        next_batch: the batches before it are written.
        query: the id of the streaming query, which lives in its checkpoint.
        shards: how many there are.
        was: on shard 0 alone, while their number changes: how many there were; else 0.
        checksum: of the last batch, ``next_batch - 1``.
        owner: who committed it; no two entries have the same.
        marks: on shard 0 alone, how many input partitions have a mark beside it (`eos.spark.stream.marks`).
        at_s: when, in seconds since 1970 by the owner's clock.
        app: the sink that committed it; "" if the metadata does not say.
        run: the run of the query that committed it (each start is another one); "" if the metadata does not say.
        in_place: whether they are the input's partitions (`Division`). An entry that does not say so is of a shuffle by key.
        on: the topic that it stands on: the marks beside it, in the same commit, say all that it says; "" if the metadata does not say.
    """

    next_batch: int
    query: str
    shards: int
    was: int = 0
    checksum: Checksum = Checksum()
    owner: str = ""
    marks: int = field(default=0, compare=False)
    at_s: int = field(default=0, compare=False)
    app: str = field(default="", compare=False)
    run: str = field(default="", compare=False)
    in_place: bool = False
    on: str = field(default="", compare=False)

    def __str__(self) -> str:
        change = f" (was {self.was})" if self.was else ""
        kind = " in place" if self.in_place else ""
        return f"next batch {self.next_batch} of {self.shards} shards{kind}{change} of query {self.query}"

    @property
    def division(self) -> Division:
        """How the batch was divided that it was committed with."""
        return Division(self.shards, self.in_place)

    @classmethod
    def given_up_for(cls, batch: int, name: str) -> LogEntry:
        """What stays under a sink's former name: no driver goes on from there."""
        return cls(batch, f"{_GIVEN_UP_FOR}{name}", 1)

    @property
    def is_given_up(self) -> bool:
        """Whether it is one of these."""
        return self.query.startswith(_GIVEN_UP_FOR)

    def stands_on(self, topic: str, *, if_unsaid: bool) -> bool:
        """Whether it is an entry, where a topic's offset has this text. A mark has the text of an entry on another topic.

        An older text does not say where its entry stands; ``if_unsaid`` is the answer then.
        """
        return self.on == topic if self.on else if_unsaid

    def is_said_by(self, other: LogEntry | None) -> bool:
        """Whether the other one says the same of batches and shards, committed by any owner."""
        return other is not None and replace(self, checksum=other.checksum, owner=other.owner) == other

    @classmethod
    def parse(cls, offset: int, metadata: str) -> LogEntry | None:
        """The entry in a committed offset; None if it was not written by a sink."""
        match = _FORM.fullmatch(metadata)
        of_owner = OffsetMetadata.parse(match[1]) if match is not None else None
        if match is None or of_owner is None or of_owner.mode is not OwnershipMode.SINK:
            return None
        return cls(
            offset,
            match[2],
            int(match[3]),
            int(match[4]),
            Checksum(int(match[5]), int(match[6], 16), match[8] or ""),
            of_owner.owner,
            marks=int(match[7] or 0),
            at_s=of_owner.at_s,
            app=of_owner.app,
            run=match[9] or "",
            in_place=match[10] is not None,
            on=match[11] or "",
        )


@dataclass(frozen=True, slots=True)
class EntryMetadata(OffsetMetadata):
    """Offset metadata that says what an entry says beyond its offset. The checksum is known only when it is written."""

    entry: LogEntry = LogEntry(0, "", 0)
    checksum: RunningChecksum = field(default_factory=RunningChecksum)

    def __str__(self) -> str:
        entry, checksum = self.entry, self.checksum.now
        return (
            f"{OffsetMetadata.__str__(self)} query={entry.query} shards={entry.shards} was={entry.was} "
            f"rows={checksum.rows} digest={checksum.digest:016x}"
            f"{f' marks={entry.marks}' if entry.marks else ''}{f' input={checksum.input}' if checksum.input else ''}"
            f"{f' run={entry.run}' if entry.run else ''}"
            f"{' in-place' if entry.in_place else ''}{f' on={entry.on}' if entry.on else ''}"
        )

    @classmethod
    def of(cls, entry: LogEntry, shard: str, checksum: RunningChecksum | None = None) -> EntryMetadata:
        """What an entry is committed with; the checksum is of rows that are still to come, or the entry's own."""
        return cls(
            OwnershipMode.SINK, shard, entry=entry, checksum=checksum or RunningChecksum(entry.checksum)
        )

"""The entry of a shard in a streaming sink's ledger, and the text that it is stored as: the metadata of a committed offset."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from eos.group.metadata import OffsetMetadata, OwnershipMode

_FORM = re.compile(
    r"(eos1 .*) query=(\S+) shards=(\d+) was=(\d+) rows=(\d+) (content|digest)=([0-9a-f]{16})"
    r"(?: marks=(\d+))?(?: input=([0-9a-f]{16}))?",
    re.ASCII,
)
_WORD = 1 << 64


@dataclass(frozen=True, slots=True)
class Content:
    """How many rows, and the sum of their hashes: the same for the same rows in any order.

    Args:
        rows: how many.
        digest: the sum.
        of_keys: the hashes are those by which rows are divided into shards, of keyed rows that of the key alone. Entries
            of earlier versions have such a digest (``content=``); now it is of all that a record is made of.
        input: a digest of the offsets between which the batch's input lies; "" if that is not known. Rows that are missing may
            all be of other shards, so the rows of this one do not show that another part of the input was read.
    """

    rows: int = 0
    digest: int = 0
    of_keys: bool = False
    input: str = ""

    def plus(self, rows: int, digest: int) -> Content:
        """With more rows; ``digest`` may be negative, as Spark's hashes are."""
        return replace(self, rows=self.rows + rows, digest=(self.digest + digest) % _WORD)

    def __str__(self) -> str:
        return f"{self.rows} rows ({self.digest:016x}{f' of input {self.input}' if self.input else ''})"


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What one shard's ledger says.

    Args:
        next_batch: the batches before it are written.
        query: the id of the streaming query, which lives in its checkpoint.
        shards: how many there are.
        was: on shard 0 alone, while their number changes: how many there were; else 0.
        content: of the last batch, ``next_batch - 1``.
        owner: who committed it; no two entries have the same.
        marks: on shard 0 alone, how many input partitions have a mark beside it (`eos.spark.stream_input`).
        at_s: when, in seconds since 1970 by the owner's clock.
        app: the sink that committed it; "" if the metadata does not say.
    """

    next_batch: int
    query: str
    shards: int
    was: int = 0
    content: Content = Content()
    owner: str = ""
    marks: int = field(default=0, compare=False)
    at_s: int = field(default=0, compare=False)
    app: str = field(default="", compare=False)

    def is_said_by(self, other: LedgerEntry | None) -> bool:
        """Whether the other one says the same of batches and shards, committed by any owner."""
        return other is not None and replace(self, content=other.content, owner=other.owner) == other

    @classmethod
    def parse(cls, offset: int, metadata: str) -> LedgerEntry | None:
        """The entry in a committed offset; None if it was not written by a sink."""
        match = _FORM.fullmatch(metadata)
        of_owner = OffsetMetadata.parse(match[1]) if match is not None else None
        if match is None or of_owner is None or of_owner.mode is not OwnershipMode.SINK:
            return None
        content = Content(
            int(match[5]), int(match[7], 16), of_keys=match[6] == "content", input=match[9] or ""
        )
        return cls(
            offset,
            match[2],
            int(match[3]),
            int(match[4]),
            content,
            of_owner.owner,
            marks=int(match[8] or 0),
            at_s=of_owner.at_s,
            app=of_owner.app,
        )


class Tally:
    """The content of the rows that passed so far."""

    def __init__(self, content: Content = Content()) -> None:
        self.content = content

    def add(self, rows: int, digest: int) -> None:
        """Count more rows."""
        self.content = self.content.plus(rows, digest)


@dataclass(frozen=True, slots=True)
class EntryMetadata(OffsetMetadata):
    """Offset metadata that says what an entry says beyond its offset. The content is known only when it is written."""

    query: str = ""
    shards: int = 0
    was: int = 0
    tally: Tally = field(default_factory=Tally)
    marks: int = 0

    def __str__(self) -> str:
        content = self.tally.content
        return (
            f"{OffsetMetadata.__str__(self)} query={self.query} shards={self.shards} was={self.was} "
            f"rows={content.rows} {'content' if content.of_keys else 'digest'}={content.digest:016x}"
            f"{f' marks={self.marks}' if self.marks else ''}{f' input={content.input}' if content.input else ''}"
        )

    @classmethod
    def of(cls, entry: LedgerEntry, shard: str, tally: Tally | None = None) -> EntryMetadata:
        """What an entry is committed with.

        Args:
            entry: what to say.
            shard: whose entry it is.
            tally: of rows that are still to come; the entry's own content if not given.
        """
        return cls(
            OwnershipMode.SINK,
            shard,
            query=entry.query,
            shards=entry.shards,
            was=entry.was,
            tally=Tally(entry.content) if tally is None else tally,
            marks=entry.marks,
        )

"""Stamp: who committed an offset, written as the metadata of every committed offset.

A stamp answers questions that the offset alone cannot. After a reopen: are the offsets still the ones that
*this* owner committed, in its last commit or the one before, and if not, has our own shard a new owner or did
the partition move to another shard? At a start: were they committed under the same mode of ownership? (A classic
group accepts the offsets of an assigned, group-less consumer unchecked, so the two modes must not mix.) And how old
are they? Kafka forgets an offset some days after its commit, each by itself in a group without members, and does not
tell the age of those that are left. Nor which partitions had one: so each offset also says how many are known to have.
"""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass, field, replace
from enum import StrEnum


class OwnershipMode(StrEnum):
    """How a process comes to own input partitions."""

    GROUP = "group"
    PARTITION = "partition"
    BATCH = "batch"  # one transaction for all input partitions
    SINK = "sink"  # the ledger of a streaming query's output shards
    START = "start"  # no owner yet: the offsets that a start policy wrote; both modes take them over


_FORM = re.compile(
    r"eos1 mode=(\w+) shard=(\S+) owner=(\w+) commit=(0|[1-9]\d{0,18}) at=(0|[1-9]\d{0,11}) had=(0|[1-9]\d{0,9})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Stamp:
    """The mode of ownership, the shard (``str(shard)``), a token that no other session has, its commits' count and time.

    ``at_s`` is in seconds since 1970 by the owner's clock: good for days, not for an order of commits. ``had`` is how many of
    the topic's first partitions are known to have, or to have had, an offset; see :mod:`eos.expiry`.
    """

    mode: OwnershipMode
    shard: str
    owner: str = field(default_factory=lambda: secrets.token_hex(6))
    commit: int = 0
    at_s: int = field(default_factory=lambda: int(time.time()))
    had: int = 0

    def __str__(self) -> str:
        return (
            f"eos1 mode={self.mode} shard={self.shard} owner={self.owner} commit={self.commit} at={self.at_s} "
            f"had={self.had}"
        )

    def next(self) -> Stamp:
        """The stamp of the same owner's next commit."""
        return replace(self, commit=self.commit + 1, at_s=int(time.time()))

    def fits(self, mode: OwnershipMode) -> bool:
        """Whether owners of this mode take the offset over: it is one of theirs, or a start policy's."""
        return self.mode in (mode, OwnershipMode.START)

    @classmethod
    def parse(cls, metadata: str) -> Stamp | None:
        """The stamp in an offset's metadata; None if somebody else than eos committed it."""
        match = _FORM.fullmatch(metadata)
        if match is None or match[1] not in set(OwnershipMode):
            return None
        return cls(OwnershipMode(match[1]), match[2], match[3], int(match[4]), int(match[5]), int(match[6]))

"""OffsetMetadata: the string that is stored with every committed offset, and says who committed it.

It answers what the offset alone cannot:

- After a reopen: did *this* owner commit the offset, in its last commit or the one before? If not, does our shard have a new
  owner, or did the partition move to another shard?
- At a start: was it committed under the same mode of ownership? A classic group accepts the offsets of a consumer that is no
  member unchecked, so the two modes must not mix. And by the same app? Two jobs in one group do not fence each other.
- How old is it, and how many partitions of the topic had an offset? Kafka deletes an offset some days after its commit, each
  separately in a group without members, and reports neither.
- Which topic does it count in? A topic that is deleted and created anew begins at offset 0 again under the same name.
- Was the input behind it taken up before, by owners that did not get past it? It may be what ended them.
- Were the records before it all poison? Then the transform is wrong, and the next owner goes on counting.
- On which host, in which process? No coordinator says who else has a transactional.id.
- Was the group left for another one? Two groups of one job would make the same output twice.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from dataclasses import dataclass, field, replace
from enum import StrEnum
from urllib.parse import quote, unquote


class OwnershipMode(StrEnum):
    """How a process comes to own input partitions."""

    GROUP = "group"
    PARTITION = "partition"
    BATCH = "batch"  # one transaction for all input partitions
    SINK = "sink"  # the ledger of a streaming query's output shards
    START = "start"  # older metadata of a start policy's offsets; every mode takes them over


# The shards of what a person has set, and of what a start has adopted: `eos status` says who has committed.
OPERATOR, ADOPTED = "operator", "adopted"
_MOVED_TO = "moved-to:"  # and the group that has the offsets now: an operator has copied them there

# Older metadata has no app, no topic and no host.
_FORM = re.compile(
    r"eos1 mode=(?P<mode>\w+) shard=(?P<shard>\S+) owner=(?P<owner>\w+?)(?:_p(?P<in_a_row>[1-9]\d{0,8}))?"
    r"(?:_(?P<attempt>[1-9]\d{0,4}))? commit=(?P<commit>0|[1-9]\d{0,18}) at=(?P<at>0|[1-9]\d{0,11}) "
    r"had=(?P<had>0|[1-9]\d{0,9})(?: app=(?P<app>[A-Za-z0-9_-]+))?(?: topic=(?P<topic>[A-Za-z0-9_-]+))?"
    r"(?: host=(?P<host>[A-Za-z0-9_.-]+/\d+))?",
    re.ASCII,
)
_NOT_OF_A_NAME = re.compile(r"[^A-Za-z0-9_.-]")


def this_process() -> str:
    """``host name/process id``."""
    return f"{_NOT_OF_A_NAME.sub('_', socket.gethostname()) or '_'}/{os.getpid()}"


@dataclass(frozen=True, slots=True)
class OffsetMetadata:
    """Who committed an offset, and when.

    Attributes:
        mode: the mode of ownership.
        shard: ``str(shard)``.
        owner: a token that is unique to the session.
        commit: the number of the owner's commit.
        at_s: seconds since 1970 by the owner's clock: good for days, not for an order of commits.
        started_partitions: how many of the topic's first partitions have, or once had, an offset (``had=``); see
            :mod:`eos.group.expiry`.
        app: the job's name; "" in older metadata.
        topic: the id of the topic that the offset counts in; "" in older metadata.
        host: and process of the owner, ``web-0/17``; "" in older metadata.
        attempt: how far the search for a record behind this offset has come that ends its owners (`eos.crashes.suspects`); 0:
            there is none.
        in_a_row: how many records in a row before this offset were poison, as its owner had counted; an eos without this count
            reads it as a part of the owner's token.
    """

    mode: OwnershipMode
    shard: str
    owner: str = field(default_factory=lambda: secrets.token_hex(6))
    commit: int = 0
    at_s: int = field(default_factory=lambda: int(time.time()))
    started_partitions: int = 0
    app: str = ""
    topic: str = ""
    host: str = field(default_factory=this_process)
    attempt: int = 0
    in_a_row: int = 0

    def __str__(self) -> str:
        owner = f"{self.owner}_p{self.in_a_row}" if self.in_a_row else self.owner
        owner = f"{owner}_{self.attempt}" if self.attempt else owner
        text = (
            f"eos1 mode={self.mode} shard={self.shard} owner={owner} commit={self.commit} at={self.at_s} "
            f"had={self.started_partitions}"
        )
        named = {"app": self.app, "topic": self.topic, "host": self.host}
        return text + "".join(f" {name}={value}" for name, value in named.items() if value)

    def next(self) -> OffsetMetadata:
        """The metadata of the same owner's next commit."""
        return replace(self, commit=self.commit + 1, at_s=int(time.time()))

    def is_owner_of(self, text: str) -> bool:
        """Whether the same owner wrote this metadata, also where more stands behind it, as in the ledger of a stream."""
        match = _FORM.match(text)
        return match is not None and match["owner"] == self.owner

    def moved(self, group: str) -> OffsetMetadata:
        """What stays in a group whose offsets were copied to this one, where the job goes on."""
        return replace(self, shard=_MOVED_TO + quote(group, safe=""))

    @property
    def moved_to(self) -> str:
        """The group where the job goes on, if the offset was left behind; else ""."""
        _, moved, group = self.shard.partition(_MOVED_TO)
        return unquote(group) if moved else ""

    def fits(self, mode: OwnershipMode) -> bool:
        """Whether an owner of this mode takes the offset over: it has the same mode, or is an older start policy's."""
        return self.mode in (mode, OwnershipMode.START)

    @classmethod
    def parse(cls, metadata: str, *, with_more: bool = False) -> OffsetMetadata | None:
        """Parse an offset's metadata; None if another program than eos committed it.

        ``with_more``: also where more stands behind it, as in the ledger of a stream.
        """
        match = (_FORM.match if with_more else _FORM.fullmatch)(metadata)
        if match is None or match["mode"] not in set(OwnershipMode):
            return None
        return cls(
            OwnershipMode(match["mode"]),
            match["shard"],
            match["owner"],
            int(match["commit"]),
            int(match["at"]),
            int(match["had"]),
            app=match["app"] or "",
            topic=match["topic"] or "",
            host=match["host"] or "",
            attempt=int(match["attempt"] or 0),
            in_a_row=int(match["in_a_row"] or 0),
        )

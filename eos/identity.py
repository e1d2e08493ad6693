"""Identity: what a job is to everything that looks at it from outside: its kind, its names on the cluster, its topics.

Each kind of job gives one (`Declaration.identity`), and nothing else asks what kind it has before it: grants, preflight, status,
an operator's commands and a trial read this alone. So a further kind is one class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol

from eos.shards import shard_prefix


class Kind(StrEnum):
    """How a job runs."""

    LOOP = "loop"
    BATCH = "batch"
    STREAM = "stream"

    @property
    def on_spark(self) -> bool:
        """Whether `eos spark run` runs it, and tasks of Spark own its input."""
        return self in (Kind.BATCH, Kind.STREAM)


class Naming(Protocol):
    """What of `Settings` decides under which names a job is known."""

    @property
    def ownership(self) -> Any: ...

    @property
    def spark(self) -> Any: ...

    def group_for(self, job_name: str) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A job with the settings of a process.

    Attributes:
        kind: how it runs.
        app: its name, which begins its transactional.ids.
        group: what the settings, or else its name, say.
        commits: each group that it commits to, with the topics of the offsets; first the one of its input's.
        mode: how an owner comes to own input, as the offsets' metadata says it.
        inputs: the topics whose offsets are committed; sorted.
        read: every topic that is read; sorted.
        outputs: every topic that may be written to; sorted.
        dead_letters: the one of them for records that the transform raises for.
        keeps_order: whether outputs have the order of their input.
        ledgers: what the names of the ledger groups of a streaming query, or of a relay, begin with.
        ledger_topic: the topic on whose partition 0 a new ledger stands.
        transactional: whether it commits in transactions of Kafka, each of its shards under an id of its own.
        judged_by: what `eos verify` compares: the topics or the tables that its transform writes, or the rows that it relays.
        fixed: why an operator cannot move its place in its input; "" if it can be moved.
        positions: of settings, makes what reads and sets its place, an `eos.ops.positions.Positions`; None: the place is the offsets
            of its group, or it is fixed.
    """

    kind: Kind
    app: str
    group: str
    commits: Mapping[str, frozenset[str]]
    mode: Literal["group", "partition", "batch", "sink"]
    inputs: tuple[str, ...]
    read: tuple[str, ...]
    outputs: tuple[str, ...]
    dead_letters: str | None = None
    keeps_order: bool = True
    ledgers: str | None = None
    ledger_topic: str | None = None
    transactional: bool = True
    judged_by: Literal["topics", "tables", "rows"] = "topics"
    fixed: str = ""
    positions: Callable[[Any], Any] | None = None

    @property
    def ids(self) -> str | None:
        """What its transactional.ids begin with; None: it has none."""
        return shard_prefix(self.app, self.group) if self.transactional else None

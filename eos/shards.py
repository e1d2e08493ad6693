"""Shard <-> transactional.id; the only place where that string is built or parsed.

The format is a contract with every process that runs already: a process that builds the same id
fences its previous owner, and one that builds another id does not. Changing it is a breaking change.

``<app>.<group>.p.<topic>.<partition>`` for a shard that is one input partition,
``<app>.<group>.i.<ordinal>`` for a shard that is one instance, ``<app>.<group>.o.<number>`` for one of
the output shards of a streaming query, ``<app>.<group>.b.batch`` for a run that commits all
input partitions in one transaction, ``<app>.<group>.s.start`` for an instance that applies the start policy to
a group that has no offsets yet. App and group hold no dots (a group's dots are escaped), a topic may; so the
first three fields are cut from the left and the last from the right, and every id parses back to the
shard it was built from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from eos.errors import ConfigError
from eos.offsets import Partition

_APP = re.compile(r"[A-Za-z0-9_-]{1,60}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")  # org.apache.kafka.common.internals.Topic
_GROUP_SAFE = re.compile(r"[A-Za-z0-9_-]")
# The broker stores the id as a string with a 16-bit length; a longer id is refused there with a
# message that names nothing. Group names are escaped, which may triple them.
_MAX_ID_CHARS = 1024
_MAX_ORDINAL = 1_000_000
_MAX_DIGITS = 10  # a partition number is a 32-bit integer


@dataclass(frozen=True, slots=True)
class PartitionShard:
    """One input partition as the unit of ownership: a process that takes it over fences its previous owner.

    Raises:
        ConfigError: a name or the partition cannot stand in a transactional.id.
    """

    app: str
    group: str
    partition: Partition

    def __post_init__(self) -> None:
        _check_names(self.app, self.group)
        if not _TOPIC.fullmatch(self.partition.topic):
            msg = f"{self.partition.topic!r} is not a topic name (letters, digits, '.', '_', '-')"
            raise ConfigError(msg)
        if self.partition.number < 0:
            msg = f"{self.partition.number} is not a partition number"
            raise ConfigError(msg)
        _check_length(self.transactional_id)

    @property
    def transactional_id(self) -> str:
        topic, number = self.partition
        return f"{shard_prefix(self.app, self.group)}p.{topic}.{number}"

    def __str__(self) -> str:
        return str(self.partition)


@dataclass(frozen=True, slots=True)
class OrdinalShard:
    """One instance as the unit of ownership: its replacement under the same ordinal fences it.

    Raises:
        ConfigError: a name or the ordinal cannot stand in a transactional.id.
    """

    app: str
    group: str
    ordinal: int

    def __post_init__(self) -> None:
        _check_names(self.app, self.group)
        if not 0 <= self.ordinal < _MAX_ORDINAL:
            msg = (
                f"ordinal {self.ordinal} is out of range [0, {_MAX_ORDINAL}): an ordinal counts instances; "
                "process ids, dates and random numbers change at each start, so a replacement would not "
                "fence the transaction that a crashed instance left open. Fix: ownership.ordinal (EOS_ORDINAL) = 0, 1, 2 …"
            )
            raise ConfigError(msg)
        _check_length(self.transactional_id)

    @property
    def transactional_id(self) -> str:
        return f"{shard_prefix(self.app, self.group)}i.{self.ordinal}"

    def __str__(self) -> str:
        return f"#{self.ordinal}"


@dataclass(frozen=True, slots=True)
class StartShard:
    """The first offsets of a group: an instance that commits them fences every other that tries at the same time."""

    app: str
    group: str

    def __post_init__(self) -> None:
        _check_names(self.app, self.group)
        _check_length(self.transactional_id)

    @property
    def transactional_id(self) -> str:
        return f"{shard_prefix(self.app, self.group)}s.start"

    def __str__(self) -> str:
        return "start"


@dataclass(frozen=True, slots=True)
class BatchShard:
    """All input partitions of a group as one unit: a batch run that commits them in one transaction."""

    app: str
    group: str

    def __post_init__(self) -> None:
        _check_names(self.app, self.group)
        _check_length(self.transactional_id)

    @property
    def transactional_id(self) -> str:
        return f"{shard_prefix(self.app, self.group)}b.batch"

    def __str__(self) -> str:
        return "batch"


@dataclass(frozen=True, slots=True)
class SinkShard:
    """One of the parts that a streaming query's output is divided into, whatever its input is."""

    app: str
    group: str
    number: int

    def __post_init__(self) -> None:
        _check_names(self.app, self.group)
        if not 0 <= self.number < _MAX_ORDINAL:
            msg = f"output shard {self.number} is out of range [0, {_MAX_ORDINAL})"
            raise ConfigError(msg)
        _check_length(self.transactional_id)

    @property
    def transactional_id(self) -> str:
        return f"{shard_prefix(self.app, self.group)}o.{self.number}"

    def __str__(self) -> str:
        return f"out#{self.number}"


Shard = PartitionShard | OrdinalShard | SinkShard | BatchShard | StartShard


def shard_prefix(app: str, group: str) -> str:
    """What every transactional.id of an app and group begins with: the prefix of its access rules."""
    return f"{app}.{_escaped(group)}."


def parse_transactional_id(transactional_id: str) -> Shard:
    """The shard that an id was built from.

    Raises:
        ConfigError: the id is not one of ours.
    """
    parts = transactional_id.split(".", 3)
    if len(parts) == 4:  # noqa: PLR2004 - app, group, kind, rest
        app, group, kind, rest = parts
        if kind == "i" and _is_number(rest):
            return _exactly(transactional_id, OrdinalShard(app, unquote(group), int(rest)))
        if kind == "o" and _is_number(rest):
            return _exactly(transactional_id, SinkShard(app, unquote(group), int(rest)))
        if kind == "b" and rest == "batch":
            return _exactly(transactional_id, BatchShard(app, unquote(group)))
        if kind == "s" and rest == "start":
            return _exactly(transactional_id, StartShard(app, unquote(group)))
        topic, dot, number = rest.rpartition(".")
        if kind == "p" and dot and _is_number(number):
            partition = Partition(topic, int(number))
            return _exactly(transactional_id, PartitionShard(app, unquote(group), partition))
    raise _not_ours(transactional_id)


def _exactly(transactional_id: str, shard: Shard) -> Shard:
    # "007" or an escape that we would not have written parses, but is not what we build.
    if shard.transactional_id != transactional_id:
        raise _not_ours(transactional_id)
    return shard


def _not_ours(transactional_id: str) -> ConfigError:
    return ConfigError(
        f"{transactional_id!r} is not a transactional.id of eos "
        "(<app>.<group> and then .p.<topic>.<partition>, .i.<ordinal>, .o.<number>, .b.batch or .s.start)",
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def _check_names(app: str, group: str) -> None:
    if not _APP.fullmatch(app):
        msg = (
            f"app name {app!r}: use 1 to 60 letters, digits, '_' or '-'. It begins the transactional.id, "
            "and dots separate the fields there. Fix: rename the job."
        )
        raise ConfigError(msg)
    if not group or not group.isprintable():
        msg = f"group {group!r}: a group id is printable and not empty. Fix: set EOS_GROUP."
        raise ConfigError(msg)


def _check_length(transactional_id: str) -> None:
    if len(transactional_id) > _MAX_ID_CHARS:
        msg = (
            f"the transactional.id has {len(transactional_id)} characters, over {_MAX_ID_CHARS}. "
            "Fix: shorten the job's name or the group (escaping triples its special characters)."
        )
        raise ConfigError(msg)


def _escaped(group: str) -> str:
    return "".join(
        char if _GROUP_SAFE.match(char) else "".join(f"%{byte:02X}" for byte in char.encode())
        for char in group
    )


def ledger_group(group: str, shard: int) -> str:
    """The consumer group in which a streaming sink keeps which batches of an output shard are written.

    Access rules: Read on groups with the prefix ``<group>.ledger.``.
    """
    return f"{group}.ledger.{shard}"

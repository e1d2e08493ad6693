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
from urllib.parse import quote, unquote

from eos.errors import ConfigError
from eos.offsets import Partition

APP_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")
TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")  # org.apache.kafka.common.internals.Topic
# The broker stores the id as a string with a 16-bit length; a longer id is refused there with a
# message that names nothing. Group names are escaped, which may triple them.
_MAX_ID_CHARS = 1024
_MAX_ORDINAL = 1_000_000
STARTED = "start"  # `StartShard`, as the metadata of first offsets say it
_MAX_DIGITS = 10  # a partition number is a 32-bit integer


# librdkafka takes no other group id into a transaction: its send_offsets then fails with "group id is not safe" (measured, 2.16).
NO_GROUP_ID = "a group id is not empty, and has letters, digits, blanks and signs of ASCII alone"


def is_group_id(text: str) -> bool:
    """Whether offsets of such a group can be committed in a transaction."""
    return bool(text) and text.isascii() and text.isprintable()


@dataclass(frozen=True, slots=True)
class _Shard:
    """What all shards have.

    Raises:
        ConfigError: a name or number cannot stand in a transactional.id.
    """

    app: str
    group: str

    def __post_init__(self) -> None:
        if not APP_NAME.fullmatch(self.app):
            raise ConfigError(
                f"app name {self.app!r}: use 1 to 60 letters, digits, '_' or '-'. It begins the transactional.id, "
                "and dots separate the fields there. Fix: rename the job."
            )
        if not is_group_id(self.group):
            raise ConfigError(f"group {self.group!r}: {NO_GROUP_ID}. Fix: set EOS_GROUP.")
        self._check()
        if len(self.transactional_id) > _MAX_ID_CHARS:
            raise ConfigError(
                f"the transactional.id has {len(self.transactional_id)} characters, over {_MAX_ID_CHARS}. "
                "Fix: shorten the job's name or the group (escaping triples its special characters)."
            )

    @property
    def transactional_id(self) -> str:
        return shard_prefix(self.app, self.group) + self._rest()

    def _check(self) -> None:
        """Refuse the shard's own fields."""

    def _rest(self) -> str:
        """The id behind app and group."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class PartitionShard(_Shard):
    """One input partition as the unit of ownership: a process that takes it over fences its previous owner."""

    partition: Partition

    def _check(self) -> None:
        if not TOPIC_NAME.fullmatch(self.partition.topic):
            raise ConfigError(
                f"{self.partition.topic!r} is not a topic name (letters, digits, '.', '_', '-')"
            )
        if self.partition.number < 0:
            raise ConfigError(f"{self.partition.number} is not a partition number")

    def _rest(self) -> str:
        return f"p.{self.partition.topic}.{self.partition.number}"

    def __str__(self) -> str:
        return str(self.partition)


@dataclass(frozen=True, slots=True)
class OrdinalShard(_Shard):
    """One instance as the unit of ownership: its replacement under the same ordinal fences it."""

    ordinal: int

    def _check(self) -> None:
        if not 0 <= self.ordinal < _MAX_ORDINAL:
            raise ConfigError(
                f"ordinal {self.ordinal} is out of range [0, {_MAX_ORDINAL}): an ordinal counts instances; "
                "process ids, dates and random numbers change at each start, so a replacement would not "
                "fence the transaction that a crashed instance left open. Fix: ownership.ordinal (EOS_ORDINAL) = 0, 1, 2 …"
            )

    def _rest(self) -> str:
        return f"i.{self.ordinal}"

    def __str__(self) -> str:
        return f"#{self.ordinal}"


@dataclass(frozen=True, slots=True)
class StartShard(_Shard):
    """The first offsets of a group: an instance that commits them fences every other that tries at the same time."""

    def _rest(self) -> str:
        return "s.start"

    def __str__(self) -> str:
        return STARTED


@dataclass(frozen=True, slots=True)
class BatchShard(_Shard):
    """All input partitions of a group as one unit: a batch run that commits them in one transaction."""

    def _rest(self) -> str:
        return "b.batch"

    def __str__(self) -> str:
        return "batch"


@dataclass(frozen=True, slots=True)
class SinkShard(_Shard):
    """One of the parts that a streaming query's output is divided into, whatever its input is."""

    number: int

    def _check(self) -> None:
        if not 0 <= self.number < _MAX_ORDINAL:
            raise ConfigError(f"output shard {self.number} is out of range [0, {_MAX_ORDINAL})")

    def _rest(self) -> str:
        return f"o.{self.number}"

    def __str__(self) -> str:
        return f"out#{self.number}"


Shard = PartitionShard | OrdinalShard | SinkShard | BatchShard | StartShard


def shard_prefix(app: str, group: str) -> str:
    """What every transactional.id of an app and group begins with: the prefix of its access rules."""
    escaped = quote(group, safe="").replace(".", "%2E").replace("~", "%7E")
    return f"{app}.{escaped}."


def parse_transactional_id(transactional_id: str) -> Shard:
    """The shard that an id was built from.

    Raises:
        ConfigError: the id is not one of ours.
    """
    app, group, kind, rest = (transactional_id.split(".", 3) + [""] * 3)[:4]
    shard = _parsed(app, unquote(group), kind, rest)
    # "007" or an escape that we would not have written parses, but is not what we build.
    if shard is None or shard.transactional_id != transactional_id:
        raise ConfigError(
            f"{transactional_id!r} is not a transactional.id of eos "
            "(<app>.<group> and then .p.<topic>.<partition>, .i.<ordinal>, .o.<number>, .b.batch or .s.start)"
        )
    return shard


def _parsed(app: str, group: str, kind: str, rest: str) -> Shard | None:
    topic, _, number = rest.rpartition(".")
    match kind:
        case "i" if _is_number(rest):
            return OrdinalShard(app, group, int(rest))
        case "o" if _is_number(rest):
            return SinkShard(app, group, int(rest))
        case "p" if topic and _is_number(number):
            return PartitionShard(app, group, Partition(topic, int(number)))
        case "b":
            return BatchShard(app, group)
        case "s":
            return StartShard(app, group)
    return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def ledger_group(app: str, group: str, shard: int) -> str:
    """The consumer group in which a streaming sink keeps which batches of an output shard are written.

    ``<group>.ledger.<shard>``, where the group has the app's name, which it has by default; else
    ``<group>.<app>.ledger.<shard>``: two sinks of one group do not fence each other, so neither may find the other's ledger. An
    app holds no dots, so no two sinks have the same. Access rules: Read on groups with the prefix up to the shard.
    """
    return f"{group if group == app else f'{group}.{app}'}.ledger.{shard}"

"""A record of __consumer_offsets: whose offset it is, and what was stored.

Versions 0 to 3 of the value, and 4, which has Kafka's compact strings. Records of other kinds (members, assignments) stay as
they are.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from eos.kafka.group_offsets import Committed
from eos.offsets import Partition

OFFSETS_TOPIC = "__consumer_offsets"
_OF_AN_OFFSET = (0, 1)  # versions of the key
_WITH_EPOCH = 3
_COMPACT = 4
_MAX_VARINT_BYTES = 5


class OffsetRecord(NamedTuple):
    """A commit of an offset; ``stored`` is None where the offset was deleted."""

    group: str
    partition: Partition
    stored: Committed | None


def parse(key: bytes | None, value: bytes | None) -> OffsetRecord | None:
    """What a record says; None if it is of another kind, or of a form that is not known here."""
    try:
        whose = None if key is None else _whose(_Fields(key))
        return whose and OffsetRecord(*whose, None if value is None else _stored(_Fields(value)))
    except (struct.error, UnicodeDecodeError, ValueError):
        return None


def in_words(key: bytes | None, value: bytes | None) -> tuple[bytes | None, bytes | None]:
    """Key and value of a record as text, where it is a commit of an offset; else as they came."""
    found = parse(key, value)
    if found is None:
        return key, value
    stored = None if found.stored is None else _in_words(found.stored).encode()
    return f"group {found.group}: {found.partition}".encode(), stored


def _in_words(stored: Committed) -> str:
    epoch = "" if stored.leader_epoch is None else f", epoch {stored.leader_epoch}"
    return f"offset {stored.offset}{epoch}{stored.metadata and f', {stored.metadata}'}"


class _Fields:
    """Reads one field after another."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        (found,) = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(f">{form}")
        return int(found)

    def text(self, *, compact: bool = False) -> str:
        length = self._varint() - 1 if compact else self.number("h")
        found = self._data[self._at : self._at + length]
        if length < 0 or len(found) < length:
            raise ValueError(length)
        self._at += length
        return found.decode()

    def _varint(self) -> int:
        found = 0
        for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
            byte = self.number("B")
            found |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return found
        raise ValueError(found)


def _whose(key: _Fields) -> tuple[str, Partition] | None:
    if key.number("h") not in _OF_AN_OFFSET:
        return None
    return key.text(), Partition(key.text(), key.number("i"))


def _stored(value: _Fields) -> Committed:
    version = value.number("h")
    if not 0 <= version <= _COMPACT:
        raise ValueError(version)
    offset = value.number("q")
    epoch = value.number("i") if version >= _WITH_EPOCH else -1
    metadata = value.text(compact=version >= _COMPACT).rstrip("\0")  # which librdkafka writes behind it
    return Committed(offset, metadata, epoch if epoch >= 0 else None)

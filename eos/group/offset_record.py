"""A record of __consumer_offsets, in words: whose offset it is, and what was stored.

Versions 0 to 3 of the value, and 4, which has Kafka's compact strings. Records of other kinds (members, assignments) stay as
they are.
"""

from __future__ import annotations

import struct

_OF_AN_OFFSET = (0, 1)  # versions of the key
_WITH_EPOCH = 3
_COMPACT = 4
_MAX_VARINT_BYTES = 5


def in_words(key: bytes | None, value: bytes | None) -> tuple[bytes | None, bytes | None]:
    """Key and value of a record as text, where it is a commit of an offset; else as they came."""
    try:
        whose = None if key is None else _whose(_Fields(key))
        if whose is None:
            return key, value
        return whose.encode(), None if value is None else _stored(_Fields(value)).encode()
    except (struct.error, UnicodeDecodeError, ValueError):  # a form that is not known here
        return key, value


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


def _whose(key: _Fields) -> str | None:
    if key.number("h") not in _OF_AN_OFFSET:
        return None
    return f"group {key.text()}: {key.text()}[{key.number('i')}]"


def _stored(value: _Fields) -> str:
    version = value.number("h")
    if not 0 <= version <= _COMPACT:
        raise ValueError(version)
    offset = value.number("q")
    epoch = value.number("i") if version >= _WITH_EPOCH else -1
    metadata = value.text(compact=version >= _COMPACT).rstrip("\0")  # which librdkafka writes behind it
    return f"offset {offset}{f', epoch {epoch}' if epoch >= 0 else ''}{f', {metadata}' if metadata else ''}"

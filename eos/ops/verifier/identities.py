"""Identities: hashes of outputs, so that a comparison keeps no contents."""

from __future__ import annotations

import secrets
import struct
from collections import defaultdict
from collections.abc import Collection
from hashlib import blake2b

from eos.deadletter import ERROR_HEADER
from eos.headers import Headers, any_unreadable, legible
from eos.records import InputRecord, OutputRecord

_HASH_BYTES = 8  # SQLite's integers
_NONE = -1
_NO_NAME = "\0"  # no client writes it as a header's name: it ends there
_FRAME = struct.Struct("<5q").pack  # timestamp, number of headers; lengths of topic, key, value
_HEADER = struct.Struct("<2q").pack  # lengths of name and value


class Identities:
    """Hashes of topic, key, value, headers, and the timestamp where the transform sets it; keyed anew each time.

    64 bits are enough. Two different outputs with one hash do no harm while both are there: the sums are equal.
    A difference is only hidden if a lost output collides with a surplus one, of which there are few unless the
    verdict is clear anyway; and no writer can aim for that without the key.

    Args:
        broker_timestamps: the topics whose broker writes its own time into records: no timestamp counts there.
        dead_letters: the topic where the text of an error does not count. The letter's coordinates say which record it is of;
            its text may have an address or the order of a set in it, and differs between versions of Python.
    """

    def __init__(self, broker_timestamps: Collection[str], dead_letters: str | None = None) -> None:
        self._key = secrets.token_bytes(16)
        self._broker_timestamps = frozenset(broker_timestamps)
        self._dead_letters = dead_letters
        # Per topic: whether its outputs set their timestamp; both where some do.
        self._claims: defaultdict[str, set[bool]] = defaultdict(set)
        self._sealed: dict[str, list[bool]] = {}

    def expected(self, output: OutputRecord) -> int:
        """The identity of an output that the transform makes."""
        timestamp_ms = None if output.topic in self._broker_timestamps else output.timestamp_ms
        self._claims[output.topic].add(timestamp_ms is not None)
        return self._hash(
            output.topic, as_bytes(output.key), as_bytes(output.value), output.headers, timestamp_ms
        )

    def seal(self) -> bool:
        """End the expecting; true if some outputs of a topic set their timestamp and others of it do not."""
        self._sealed = {topic: sorted(claims, reverse=True) for topic, claims in self._claims.items()}
        return any(len(claims) > 1 for claims in self._sealed.values())

    def candidates(self, record: InputRecord) -> list[int]:
        """The identities that a found record may have, one with a timestamp first; rarely more than one."""
        topic, headers, timestamp_ms = record.topic, record.headers, record.timestamp_ms
        if any_unreadable([headers]):  # not written by this client: like none that is expected
            headers = ((_NO_NAME, None), *legible(headers))
        return [
            self._hash(topic, record.key, record.value, headers, timestamp_ms if sets_timestamp else None)
            for sets_timestamp in self._sealed.get(topic, [False])
        ]

    def _hash(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int | None
    ) -> int:
        name = topic.encode()
        if topic == self._dead_letters:
            headers = tuple(one for one in headers if one[0] != ERROR_HEADER)
        # Lengths first, so that no two different records are the same bytes.
        frame = _FRAME(
            _NONE if timestamp_ms is None else timestamp_ms,
            len(headers),
            len(name),
            _NONE if key is None else len(key),
            _NONE if value is None else len(value),
        )
        content = b"".join((frame, name, key or b"", value or b"", _framed(headers) if headers else b""))
        digest = blake2b(content, digest_size=_HASH_BYTES, key=self._key).digest()
        return int.from_bytes(digest, "little", signed=True)


def _framed(headers: Headers) -> bytes:
    parts = []
    for text, content in headers:
        name, value = as_bytes(text) or b"", as_bytes(content)  # the client takes bytes as a name, too
        parts += [_HEADER(len(name), _NONE if value is None else len(value)), name, value or b""]
    return b"".join(parts)


def as_bytes(field: bytes | str | None) -> bytes | None:
    """A key or value as the client writes it."""
    # Text is not declared, but librdkafka's client takes it, so a transform may return it.
    return field.encode() if isinstance(field, str) else field

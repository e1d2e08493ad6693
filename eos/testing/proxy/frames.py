"""Kafka request frames as bytes on the wire: the header, and what of the bodies and answers a rule looks into.

Every request is parsed: so its header is read here, and the rest by kafka-python when a rule asks for it. A version from which an API is "flexible" writes lengths
as unsigned varints (plus one) and has tagged fields, in the request header too.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from eos.testing.proxy import answers
from eos.testing.proxy.api import ApiKey

__all__ = ["ApiKey", "Frame"]


# The transactional.id is the first field of these bodies; the value is their first flexible version.
_TRANSACTIONAL: dict[int, int] = {
    ApiKey.PRODUCE: 9,
    ApiKey.INIT_PRODUCER_ID: 2,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.END_TXN: 3,
    ApiKey.TXN_OFFSET_COMMIT: 3,
}
_FLEXIBLE_FROM: dict[int, int] = {
    **_TRANSACTIONAL,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 6,
    ApiKey.METADATA: 9,
    ApiKey.OFFSET_FETCH: 6,
    ApiKey.HEARTBEAT: 4,
}
_LEADER_NOT_AVAILABLE = 5


@dataclass(frozen=True)
class Frame:
    """One request as a client sent it, without the length in front.

    ``api_key`` is a plain int: clients send requests that ``ApiKey`` does not name. ``client_port``: where its connection
    comes from, by which the process behind it is found; 0 if it is not known.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    payload: bytes
    body_at: int
    client_port: int = 0

    @classmethod
    def parse(cls, payload: bytes, client_port: int = 0) -> Frame:
        """The frame of a request's payload (what follows the four bytes of length)."""
        api_key, api_version, correlation_id = struct.unpack_from(">hhi", payload)
        client_id, at = _string(payload, 8, flexible=False)  # it keeps its old form in flexible headers too
        if _is_flexible(api_key, api_version):
            count, at = _uvarint(payload, at)
            for _ in range(count):  # tagged fields
                _, at = _uvarint(payload, at)
                length, at = _uvarint(payload, at)
                at += length
        return cls(api_key, api_version, correlation_id, client_id, payload, at, client_port)

    @property
    def flexible(self) -> bool:
        """Whether header and body are of the flexible form."""
        return _is_flexible(self.api_key, self.api_version)

    @cached_property
    def transactional_id(self) -> str | None:
        """The transactional.id of a request of the transaction protocol, None for any other request."""
        if self.api_key not in _TRANSACTIONAL:
            return None
        return _string(self.payload, self.body_at, flexible=self.flexible)[0]

    def body(self) -> Any:
        """The request as kafka-python reads it: an object with the fields of Kafka's protocol, in small letters."""
        return answers.asked(self)

    def end_txn(self) -> Any | None:
        """The body, if this is an EndTxn request: ``transactional_id``, ``producer_id``, ``producer_epoch``, ``committed``."""
        return self.body() if self.api_key == ApiKey.END_TXN else None

    def error_in(self, answer: bytes) -> int:
        """The error code that the broker's answer to this InitProducerId, AddOffsetsToTxn, EndTxn or Heartbeat holds."""
        return answers.error_in(self, answer)

    def with_error(self, answer: bytes, error: int) -> bytes:
        """The broker's answer to this request, as if each part of it had failed with this error.

        Known: Produce, Fetch, OffsetFetch (version 8 or newer), ListOffsets, Heartbeat, and the requests of transactions.
        """
        return answers.with_error(self, answer, error)

    def with_fetch_error(self, answer: bytes, partition: int | None, error: int) -> bytes:
        """The broker's answer to this Fetch, with an error in place of the records of one partition, in every topic.

        None: of every partition.
        """
        return answers.with_fetch_error(self, answer, partition, error)

    def with_offsets_error(self, answer: bytes, error: int) -> bytes:
        """The broker's answer to this ListOffsets, with an error in place of every offset."""
        found = answers.read(self, answer, ApiKey.LIST_OFFSETS)
        for one in answers.each(found.topics, "partitions"):
            one.error_code, one.timestamp, one.offset = error, -1, -1
        return answers.written(self, found)

    def with_no_offset(self, answer: bytes, partition: int) -> bytes:
        """The broker's answer to this OffsetFetch (version 8 or newer), as if the group had no offset of a partition.

        In every topic; an offset counts as none if it is -1, whatever metadata comes with it.
        """
        found = answers.read(self, answer, ApiKey.OFFSET_FETCH)
        for one in answers.each(answers.each(found.groups, "topics"), "partitions"):
            if one.partition_index == partition:
                one.committed_offset = one.committed_leader_epoch = -1
        return answers.written(self, found)

    def with_no_brokers(self, answer: bytes) -> bytes:
        """The broker's answer to this Metadata, with its topics and without any broker."""
        found = answers.read(self, answer, ApiKey.METADATA)
        found.brokers = []
        return answers.written(self, found)

    def with_no_topics(self, answer: bytes) -> bytes:
        """The broker's answer to this Metadata, with its brokers and without any topic."""
        found = answers.read(self, answer, ApiKey.METADATA)
        found.topics = []
        return answers.written(self, found)

    def with_fewer_partitions(self, answer: bytes, topic: str) -> bytes:
        """The broker's answer to this Metadata, without the last listed partition of a topic."""
        found = answers.read(self, answer, ApiKey.METADATA)
        for one in found.topics:
            if one.name == topic and len(one.partitions) > 1:
                one.partitions = one.partitions[:-1]
        return answers.written(self, found)

    def with_no_leader(self, answer: bytes, topic: str) -> bytes:
        """The broker's answer to this Metadata, as if no partition of a topic had a leader now."""
        found = answers.read(self, answer, ApiKey.METADATA)
        for one in answers.each((one for one in found.topics if one.name == topic), "partitions"):
            one.error_code, one.leader_id = _LEADER_NOT_AVAILABLE, -1
        return answers.written(self, found)


def _is_flexible(api_key: int, api_version: int) -> bool:
    first = _FLEXIBLE_FROM.get(api_key)
    return first is not None and api_version >= first


def _string(payload: bytes, at: int, *, flexible: bool) -> tuple[str | None, int]:
    """A string of a request, and where what is behind it begins."""
    if flexible:
        length, at = _uvarint(payload, at)
        length -= 1
    else:
        (length,), at = struct.unpack_from(">h", payload, at), at + 2
    return (None, at) if length < 0 else (payload[at : at + length].decode(), at + length)


def _uvarint(payload: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = payload[at]
        value, at, shift = value | (byte & 0x7F) << shift, at + 1, shift + 7
        if byte < 0x80:
            return value, at

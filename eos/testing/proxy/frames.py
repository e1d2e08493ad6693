"""Kafka request frames as bytes on the wire: the header, and the few bodies and answers that a rule looks into.

Layouts are those of the Kafka protocol guide. A version from which an API is "flexible" writes lengths
as unsigned varints (plus one) and has tagged fields, in the request header too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from eos.testing.proxy import answers
from eos.testing.proxy.api import ApiKey

__all__ = ["ApiKey", "EndTxn", "Frame", "TxnOffsetCommit"]


# The transactional.id is the first field of these bodies; the value is their first flexible version.
_TRANSACTIONAL = {
    ApiKey.PRODUCE: 9,
    ApiKey.INIT_PRODUCER_ID: 2,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.END_TXN: 3,
    ApiKey.TXN_OFFSET_COMMIT: 3,
}
_FLEXIBLE_FROM = {
    **_TRANSACTIONAL,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 6,
    ApiKey.METADATA: 9,
    ApiKey.OFFSET_FETCH: 6,
    ApiKey.HEARTBEAT: 4,
}
_LEADER_NOT_AVAILABLE = 5


@dataclass(frozen=True)
class EndTxn:
    """The body of an EndTxn request."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool


@dataclass(frozen=True)
class TxnOffsetCommit:
    """The body of a TxnOffsetCommit request; ``offsets`` maps (topic, partition) to the next offset."""

    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    offsets: dict[tuple[str, int], int]


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
        fields = _Fields(payload, flexible=False)
        api_key, api_version, correlation_id = fields.unpack(">hhi")
        client_id = fields.string()  # the client id keeps its old form in flexible headers too
        fields.flexible = _is_flexible(api_key, api_version)
        fields.skip_tags()
        return cls(api_key, api_version, correlation_id, client_id, payload, fields.at, client_port)

    @property
    def flexible(self) -> bool:
        """Whether header and body are of the flexible form."""
        return _is_flexible(self.api_key, self.api_version)

    @cached_property
    def transactional_id(self) -> str | None:
        """The transactional.id of a request of the transaction protocol, None for any other request."""
        if self.api_key not in _TRANSACTIONAL:
            return None
        return self.body().string()

    def end_txn(self) -> EndTxn | None:
        """The body, if this is an EndTxn request."""
        if self.api_key != ApiKey.END_TXN:
            return None
        fields = self.body()
        transactional_id = fields.string() or ""
        producer_id, producer_epoch, committed = fields.unpack(">qh?")
        return EndTxn(transactional_id, producer_id, producer_epoch, committed)

    def txn_offset_commit(self) -> TxnOffsetCommit | None:
        """The body, if this is a TxnOffsetCommit request."""
        if self.api_key != ApiKey.TXN_OFFSET_COMMIT:
            return None
        fields = self.body()
        transactional_id, group_id = fields.string() or "", fields.string() or ""
        producer_id, producer_epoch = fields.unpack(">qh")
        if self.api_version >= 3:  # KIP-447: the group's generation and member
            fields.unpack(">i")
            fields.string()
            fields.string()
        offsets = {}
        for _ in range(fields.array_length()):
            topic = fields.string() or ""
            for _ in range(fields.array_length()):
                partition, offset = fields.unpack(">iq")
                offsets[topic, partition] = offset
                if self.api_version >= 2:
                    fields.unpack(">i")  # leader epoch
                fields.string()  # metadata
                fields.skip_tags()
            fields.skip_tags()
        return TxnOffsetCommit(transactional_id, group_id, producer_id, producer_epoch, offsets)

    def error_in(self, answer: bytes) -> int:
        """The error code that the broker's answer to this InitProducerId, AddOffsetsToTxn, EndTxn or Heartbeat holds."""
        return answers.error_in(self, answer)

    def with_error(self, answer: bytes, error: int) -> bytes:
        """The broker's answer to this request, as if each part of it had failed with this error.

        Known: Produce, Fetch, OffsetFetch (version 8 or newer), Heartbeat, and the requests of transactions.
        """
        return answers.with_error(self, answer, error)

    def with_fetch_error(self, answer: bytes, partition: int | None, error: int) -> bytes:
        """The broker's answer to this Fetch, with an error in place of the records of one partition, in every topic.

        None: of every partition.
        """
        return answers.with_fetch_error(self, answer, partition, error)

    def with_offsets_error(self, answer: bytes, error: int) -> bytes:
        """The broker's answer to this ListOffsets (version 4 or newer), with an error in place of every offset."""
        fields, edited = self._answer(answer, ApiKey.LIST_OFFSETS), bytearray(answer)
        fields.unpack(">i")  # throttle
        for _ in range(fields.array_length()):
            fields.string()
            for _ in range(fields.array_length()):
                at = fields.at
                fields.unpack(">ihqqi")  # partition, error, timestamp, offset, leader epoch
                struct.pack_into(">hqq", edited, at + 4, error, -1, -1)
                fields.skip_tags()
            fields.skip_tags()
        return bytes(edited)

    def with_no_offset(self, answer: bytes, partition: int) -> bytes:
        """The broker's answer to this OffsetFetch (version 8 or newer), as if the group had no offset of a partition.

        In every topic; an offset counts as none if it is -1, whatever metadata comes with it.
        """
        edited = bytearray(answer)
        for listed, _ in self._stored_offsets(answer):
            for at in listed:
                if struct.unpack_from(">i", answer, at) == (partition,):
                    struct.pack_into(">qi", edited, at + 4, -1, -1)
        return bytes(edited)

    def _stored_offsets(self, answer: bytes) -> Iterator[tuple[list[int], int]]:
        """In the answer to an OffsetFetch: where each partition of a group starts, and where the error of the group stands."""
        fields = self._answer(answer, ApiKey.OFFSET_FETCH)
        fields.unpack(">i")  # throttle
        for _ in range(fields.array_length()):
            listed = []
            fields.string()  # group
            for _ in range(fields.array_length()):
                fields.string()  # topic
                for _ in range(fields.array_length()):
                    listed.append(fields.at)
                    fields.unpack(">iqi")  # partition, offset, leader epoch
                    fields.string()  # metadata
                    fields.unpack(">h")  # error
                    fields.skip_tags()
                fields.skip_tags()
            yield listed, fields.at
            fields.unpack(">h")  # error
            fields.skip_tags()

    def with_no_brokers(self, answer: bytes) -> bytes:
        """The broker's answer to this Metadata (version 12 or newer), with its topics and without any broker."""
        fields, start = self._behind_brokers(answer)
        return answer[:start] + bytes([1]) + answer[fields.at :]

    def with_fewer_partitions(self, answer: bytes, topic: str) -> bytes:
        """The broker's answer to this Metadata (version 12 or newer), without the last listed partition of a topic."""
        listed = self._listed_partitions(answer, topic)
        if len(listed) < 2:
            return answer
        start, last, end = listed[0], listed[-2], listed[-1]
        return answer[: start - 1] + bytes([len(listed) - 1]) + answer[start:last] + answer[end:]

    def with_no_leader(self, answer: bytes, topic: str) -> bytes:
        """The broker's answer to this Metadata (version 12 or newer), as if no partition of a topic had a leader now."""
        edited = bytearray(answer)
        for at in self._listed_partitions(answer, topic)[:-1]:
            struct.pack_into(">h", edited, at, _LEADER_NOT_AVAILABLE)
            struct.pack_into(">i", edited, at + 6, -1)
        return bytes(edited)

    def _listed_partitions(self, answer: bytes, topic: str) -> list[int]:
        """Where the partitions of a topic start in the answer to a Metadata, and where the last one ends."""
        fields, _ = self._behind_brokers(answer)
        fields.string()  # cluster
        fields.unpack(">i")  # controller
        for _ in range(fields.array_length()):
            fields.unpack(">h")  # error
            name = fields.string()
            fields.unpack(">16s?")  # id, internal
            count = fields.array_length()
            listed = [fields.at]
            for _ in range(count):
                fields.unpack(">hiii")  # error, number, leader, leader epoch
                for _ in range(3):  # replicas, in sync, offline
                    fields.skip(4 * fields.array_length())
                fields.skip_tags()
                listed.append(fields.at)
            if name == topic:
                return listed
            fields.unpack(">i")  # operations
            fields.skip_tags()
        return []

    def _behind_brokers(self, answer: bytes) -> tuple[_Fields, int]:
        """The fields behind the brokers that the answer to a Metadata lists, and where that list starts."""
        fields = self._answer(answer, ApiKey.METADATA)
        fields.unpack(">i")  # throttle
        start = fields.at
        for _ in range(fields.array_length()):
            fields.unpack(">i")  # broker
            fields.string()
            fields.unpack(">i")
            fields.string()
            fields.skip_tags()
        return fields, start

    def _answer(self, answer: bytes, *known: ApiKey) -> _Fields:
        """The fields behind the header of the answer to this request, which has to be one of these."""
        if self.api_key not in known:
            msg = f"the answer to api key {self.api_key} is not known here"
            raise ValueError(msg)
        fields = _Fields(answer, flexible=self.flexible)
        fields.unpack(">i")  # correlation id
        fields.skip_tags()
        return fields

    def body(self) -> _Fields:
        """The fields of the body, from its beginning."""
        return _Fields(self.payload, flexible=self.flexible, at=self.body_at)


def _is_flexible(api_key: int, api_version: int) -> bool:
    first = next((version for key, version in _FLEXIBLE_FROM.items() if key == api_key), None)
    return first is not None and api_version >= first


class _Fields:
    """A cursor over the fields of a frame."""

    def __init__(self, payload: bytes, *, flexible: bool, at: int = 0) -> None:
        self.payload = payload
        self.flexible = flexible
        self.at = at

    def unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self.payload, self.at)
        self.at += struct.calcsize(layout)
        return values

    def string(self) -> str | None:
        length = self._uvarint() - 1 if self.flexible else self.unpack(">h")[0]
        if length < 0:
            return None
        self.at += length
        return self.payload[self.at - length : self.at].decode()

    def array_length(self) -> int:
        return self._uvarint() - 1 if self.flexible else self.unpack(">i")[0]

    def bytes_length(self) -> int:
        return max(0, self._uvarint() - 1 if self.flexible else self.unpack(">i")[0])

    def skip(self, length: int) -> None:
        self.at += length

    def skip_tags(self) -> None:
        if not self.flexible:
            return
        for _ in range(self._uvarint()):
            self._uvarint()
            length = self._uvarint()
            self.at += length

    def _uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.payload[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

"""Answers that no broker has given: a refusal of every part of a request, made of the request alone."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence

from eos.testing.proxy.frames import ApiKey, Frame

_LOG_START_FROM, _REASONS_FROM = 5, 8  # versions of Produce
_MORE = 0x80  # in a number of variable length
_NO_OFFSETS = struct.pack(">qqq", -1, -1, -1)  # base offset, time of the append, start of the log


def refusal(frame: Frame, error: int) -> bytes:
    """The answer of a broker that has done nothing of this request of a transaction.

    Known: InitProducerId, AddOffsetsToTxn, EndTxn, AddPartitionsToTxn up to version 3, TxnOffsetCommit, and Produce from
    version 3 to 12.
    """
    wire = _Wire(flexible=frame.flexible)
    throttle = struct.pack(">i", 0)
    match frame.api_key:
        case ApiKey.INIT_PRODUCER_ID:
            body = throttle + struct.pack(">hqh", error, -1, -1) + wire.tags
        case ApiKey.ADD_OFFSETS_TO_TXN | ApiKey.END_TXN:
            body = throttle + struct.pack(">h", error) + wire.tags
        case ApiKey.ADD_PARTITIONS_TO_TXN:
            body = throttle + wire.topics(_added(frame), error) + wire.tags
        case ApiKey.TXN_OFFSET_COMMIT:
            commit = frame.txn_offset_commit()
            body = throttle + wire.topics(commit.offsets if commit else (), error) + wire.tags
        case ApiKey.PRODUCE:
            offsets = _NO_OFFSETS if frame.api_version >= _LOG_START_FROM else _NO_OFFSETS[:16]
            reasons = wire.array(()) + wire.no_text if frame.api_version >= _REASONS_FROM else b""
            body = wire.topics(_written(frame), error, offsets + reasons) + throttle + wire.tags
        case _:
            msg = f"a refusal of api key {frame.api_key} is not known here"
            raise ValueError(msg)
    return struct.pack(">i", frame.correlation_id) + wire.tags + body


def _added(frame: Frame) -> list[tuple[str, int]]:
    """The partitions of an AddPartitionsToTxn."""
    fields = frame.body()
    fields.string()
    fields.unpack(">qh")
    found = []
    for _ in range(fields.array_length()):
        topic = fields.string() or ""
        found += [(topic, fields.unpack(">i")[0]) for _ in range(fields.array_length())]
        fields.skip_tags()
    return found


def _written(frame: Frame) -> list[tuple[str, int]]:
    """The partitions of a Produce."""
    fields = frame.body()
    fields.string()
    fields.unpack(">hi")  # acks, timeout
    found = []
    for _ in range(fields.array_length()):
        topic = fields.string() or ""
        for _ in range(fields.array_length()):
            found.append((topic, fields.unpack(">i")[0]))
            fields.skip(fields.bytes_length())
            fields.skip_tags()
        fields.skip_tags()
    return found


class _Wire:
    """Writes fields in the old form or in the flexible one."""

    def __init__(self, *, flexible: bool) -> None:
        self._flexible = flexible
        self.tags = b"\0" if flexible else b""
        self.no_text = b"\0" if flexible else struct.pack(">h", -1)

    def array(self, items: Sequence[bytes]) -> bytes:
        return self._length(len(items), ">i") + b"".join(items)

    def text(self, text: str) -> bytes:
        return self._length(len(text.encode()), ">h") + text.encode()

    def topics(self, partitions: Iterable[tuple[str, int]], error: int, more: bytes = b"") -> bytes:
        """By topic and partition: the error, and what comes behind it."""
        by_topic: defaultdict[str, list[bytes]] = defaultdict(list)
        for topic, number in partitions:
            by_topic[topic].append(struct.pack(">ih", number, error) + more + self.tags)
        return self.array([self.text(name) + self.array(of) + self.tags for name, of in by_topic.items()])

    def _length(self, length: int, layout: str) -> bytes:
        if not self._flexible:
            return struct.pack(layout, length)
        rest, encoded = length + 1, b""
        while rest >= _MORE:
            encoded += bytes([rest % _MORE | _MORE])
            rest >>= 7
        return encoded + bytes([rest])

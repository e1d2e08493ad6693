"""Records whose headers' names are any bytes, as a program in another language may write them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of importlib.resources, which it uses the old way
    from kafka import KafkaProducer

_FLUSH_S = 20


class _Name(str):
    """A header's name for kafka-python, which asks it for its bytes."""

    __slots__ = ("_raw",)
    _raw: bytes

    def encode(self, *_: object) -> bytes:
        return self._raw


def produce_with_names(
    bootstrap: str,
    topic: str,
    records: Iterable[tuple[bytes, Sequence[tuple[bytes, bytes]]]],
    *,
    partition: int = 0,
) -> None:
    """Produce values with headers, whose names are bytes, in order."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    try:
        for value, headers in records:
            producer.send(topic, value, partition=partition, headers=[(_named(n), v) for n, v in headers])
        producer.flush(_FLUSH_S)
    finally:
        producer.close(_FLUSH_S)


def _named(raw: bytes) -> _Name:
    name = _Name()
    name._raw = raw
    return name

"""The calls to Kafka that classification and the retry policy tell apart."""

from __future__ import annotations

from enum import StrEnum


class Call(StrEnum):
    """A call whose errors mean something of their own."""

    INIT = "init"
    BEGIN = "begin"
    PRODUCE = "produce"
    SEND_OFFSETS = "send offsets"
    COMMIT = "commit"
    ABORT = "abort"
    COMMITTED = "read committed offsets"
    CONSUME = "consume"
    METADATA = "read metadata"

"""Source: the records of a trial's input, which several writers take."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import chain, islice

from eos.errors import ConfigError
from eos.records import OutputRecord


class Source:
    """Hands them out, each once.

    Attributes:
        records: how many were taken so far.

    Args:
        made: what the input's generator yields.
        topics: that records go to in turn which name none.

    Raises:
        ConfigError: it gives no first record, or one that is none.
    """

    def __init__(self, made: Iterable[object], topics: Collection[str]) -> None:
        self.records = 0
        self._topics = sorted(topics)
        self._taking = threading.Lock()
        rest = iter(made)
        try:
            first = list(islice(rest, 1))
        except Exception as error:
            raise ConfigError(
                f"the input's generator raised {type(error).__name__}: {error}, at its first record. Fix: the generator"
            ) from error
        if not first:
            raise ConfigError("the input's generator gives no record. Fix: one that yields the input")
        self._record(first[0])
        self._made = chain(first, rest)

    def take(self, number: int) -> list[OutputRecord]:
        """The next records; fewer at the end."""
        with self._taking:
            taken = []
            for one in islice(self._made, number):
                taken.append(self._record(one))
                self.records += 1
            return taken

    def _record(self, one: object) -> OutputRecord:
        topic = self._topics[self.records % len(self._topics)]
        if isinstance(one, OutputRecord):
            return replace(one, topic=one.topic or topic)  # a generator may use one again
        key, value = one if isinstance(one, tuple) else (None, one)
        if not isinstance(value, bytes | None) or not isinstance(key, bytes | None):
            raise ConfigError(
                f"the input's generator gave {type(one).__name__}. Fix: bytes, (key, value) pairs of bytes, or eos.OutputRecord"
            )
        return OutputRecord(topic, value, key)

"""Origins: which input record an output is made of, by the transform, where the output does not say so itself."""

from __future__ import annotations

from collections.abc import Sequence

from eos.offsets import Partition
from eos.prove.tagged import UNCOUNTED, Tag
from eos.records import InputRecord, OutputRecord

_Content = tuple[str, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


class Origins:
    """What each input record makes. Outputs that are made more than once, by whatever records, have no origin."""

    def __init__(self) -> None:
        self._of: dict[_Content, Tag | None] = {}

    def add(self, record: InputRecord, made: Sequence[OutputRecord]) -> None:
        """An input record, and its outputs."""
        source = Partition(record.topic, record.partition)
        for one in made:
            content = (one.topic, one.key, one.value, tuple(one.headers))
            seen = content in self._of
            self._of[content] = None if seen else Tag(source, record.offset, 0, UNCOUNTED)

    def of(self, output: InputRecord) -> Tag | None:
        """A record of an output topic."""
        return self._of.get((output.topic, output.key, output.value, tuple(output.headers)))

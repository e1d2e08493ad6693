"""What the cluster says of the input's topics and logs: the ids that the topics have, and where the logs begin and end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property

from eos import retry
from eos.errors import ConfigError, EosError, RecordRefusedError
from eos.group.committed import offsets_at
from eos.group.topic_ids import TopicIds, refuse_recreated
from eos.kafka.admin import Admin, Mark
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings


class InputLogs:
    """Asks until ``open_timeout_s`` have passed; then it is an UnavailableError."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._timeout_s = settings.open_timeout_s

    @cached_property
    def admin(self) -> Admin:
        """The client that asks."""
        return Admin.of(self._settings)

    def at(self, mark: Mark, partitions: Collection[Partition]) -> OffsetVector:
        """The offset of a mark in each log."""
        return offsets_at(self._settings, mark, partitions, admin=self.admin)

    def partitions(self, *topics: str) -> list[Partition]:
        """All partitions of topics; a ConfigError if one of them does not exist."""
        return retry.ask(lambda slice_s: self.admin.partitions(topics, slice_s), timeout_s=self._timeout_s)

    def ids_now(self, topics: Collection[str]) -> Mapping[str, str]:
        """The ids of the topics that exist. What is read after it counts in these topics, or its commit is refused."""
        ids = TopicIds(self._settings)
        return retry.ask(lambda slice_s: ids.now(topics, slice_s), timeout_s=self._timeout_s)

    def ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """The ids of topics that all existed a moment ago; a ConfigError if one was deleted."""
        return TopicIds(self._settings).of(topics, timeout_s=self._timeout_s) if topics else {}

    def refuse_recreated(self, expected: Iterable[tuple[str, str]]) -> None:
        """An OffsetGapError if a topic's id is no longer the expected one; a ConfigError if there is no such topic."""
        expected = set(expected)
        refuse_recreated(expected, self.ids({topic for topic, _ in expected}))


def blamed(settings: Settings, outputs: Collection[str], error: RecordRefusedError) -> EosError:
    """The error of a refused record, or of the output topic that does not exist any more: then no record is at fault."""
    try:
        InputLogs(settings).partitions(*outputs)
    except ConfigError as absent:
        return absent
    except EosError as unknown:
        error.add_note(f"whether the outputs still exist could not be asked: {unknown}")
    return error

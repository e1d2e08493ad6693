"""Input topics for batch runs, runs over them, and what an outside reader finds afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eos.events import Event
from eos.settings import Settings
from tests.support import observer
from tests.support.exactly_once import Comparison, Output, SeenRecord
from tests.support.observer import PlainRecord
from tests.support.settings import settings_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from eos.spark.batch.batch import BatchResult
    from eos.spark.plan import Commit


@dataclass
class BatchRuns:
    """A batch job with an input topic and output topics that no other test uses.

    Args:
        spark: the session.
        bootstrap: the broker.
        partitions: of the input topic, and of each output.
        outputs: how many output topics.
        overrides: settings beside the usual ones.
    """

    spark: SparkSession
    bootstrap: str
    partitions: int = 3
    outputs: int = 1
    overrides: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name = observer.unique("batch")
        self.input = observer.unique("in")
        self.topics = [observer.unique(f"out{n}") for n in range(self.outputs)]
        self.told: list[Event] = []
        observer.create_topics(self.bootstrap, dict.fromkeys([self.input, *self.topics], self.partitions))

    @property
    def output(self) -> str:
        return self.topics[0]

    @property
    def settings(self) -> Settings:
        return settings_of(self.bootstrap, **{"input.start": "earliest"} | self.overrides)

    def fill(self, records: int = 300, *, value: Callable[[int], bytes] = lambda i: b"v%d" % i) -> None:
        """Records with keys, dealt to the partitions in turn."""
        made = [PlainRecord(value(i), b"k%d" % i, i % self.partitions) for i in range(records)]
        observer.produce_plain(self.bootstrap, self.input, made)

    def recreate(self, records: int) -> None:
        """The input topic is deleted and created anew under its name, with so many records."""
        observer.recreate_topic(self.bootstrap, self.input, self.partitions)
        self.fill(records)

    def forget_group(self) -> None:
        """The group is deleted, with its offsets."""
        observer.delete_groups(self.bootstrap, self.name)

    def run(
        self, transform: Callable[[DataFrame], DataFrame], commit: Commit = "partition", **others: Any
    ) -> BatchResult:
        from eos.spark.batch.batch import ExactlyOnceBatch

        batch = ExactlyOnceBatch(
            self.spark,
            self.settings,
            name=self.name,
            inputs=others.pop("inputs", [self.input]),
            outputs=self.topics,
            listener=self.told.append,
        )
        return batch.run(transform, commit=commit, **others)

    def records(self) -> list[SeenRecord]:
        """What a read_committed reader finds in the outputs."""
        return observer.read_committed(self.bootstrap, *self.topics)

    def committed(self) -> list[int | None]:
        """The group's offset of every input partition."""
        wanted = [(self.input, number) for number in range(self.partitions)]
        found = observer.committed_offsets(self.bootstrap, self.name, wanted)
        return [found[one][0] for one in wanted]

    def assert_exactly_once(self, expected: Callable[[SeenRecord], Iterable[Output]]) -> Comparison:
        """Assert the invariant of offsets and output."""
        return observer.assert_exactly_once(self.bootstrap, self.name, [self.input], self.topics, expected)


def values(records: Sequence[SeenRecord]) -> list[bytes | None]:
    """The records' values, sorted."""
    return sorted((record.value for record in records), key=lambda value: value or b"")

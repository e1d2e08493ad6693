"""The result of a verification: what was compared, how it differs, and where to look."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from eos.offsets import Partition


class Kind(StrEnum):
    """A way in which an output can differ from what its input says."""

    LOST = "lost"  # expected, not found
    DUPLICATED = "duplicated"  # found more often than expected
    TORN = "torn"  # an input record of which some outputs were found and some were not
    UNEXPECTED = "unexpected"  # found, never expected
    REORDERED = "reordered"  # found before an output of an earlier record of the same input partition and key
    FAILED = "failed"  # the transform raised for an input record that counts as processed


@dataclass(frozen=True, slots=True)
class Example:
    """One difference.

    Attributes:
        kind: what it is.
        partition, offset: the input record (lost, torn, failed) or the output record (the other kinds).
        detail: more about it, in words.
    """

    kind: Kind
    partition: Partition
    offset: int
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.partition}@{self.offset}: {self.detail}"


@dataclass(frozen=True, slots=True)
class InputCount:
    """An input partition: ``records`` were read from ``[start, committed)``; None = no committed offset."""

    partition: Partition
    start: int
    committed: int | None
    records: int


@dataclass(frozen=True, slots=True)
class OutputCount:
    """Output records of a topic."""

    topic: str
    expected: int = 0
    found: int = 0
    lost: int = 0
    duplicated: int = 0
    unexpected: int = 0
    reordered: int = 0


@dataclass(frozen=True, slots=True)
class Differences:
    """What the comparison of expected and found outputs gave."""

    outputs: tuple[OutputCount, ...]
    torn: int
    examples: tuple[Example, ...]


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """Whether the output is exactly f(input[p][0:c]) for each input partition p and its committed offset c.

    Look at the records read as well: nothing compared with nothing is equal, too.

    Attributes:
        group: the group whose committed offsets were taken.
        inputs: per input partition.
        outputs: per output topic.
        torn: input records of which some outputs were found and some were not.
        failed: input records below the committed offset for which the transform raised.
        problems: what else contradicts exactly-once, in words.
        examples: the first few differences of each kind.
    """

    group: str
    inputs: tuple[InputCount, ...]
    outputs: tuple[OutputCount, ...]
    torn: int = 0
    failed: int = 0
    problems: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()

    @property
    def records(self) -> int:
        """Input records that count as processed."""
        return sum(one.records for one in self.inputs)

    @property
    def expected(self) -> int:
        """Output records that the processed input makes."""
        return sum(one.expected for one in self.outputs)

    @property
    def found(self) -> int:
        """Output records found."""
        return sum(one.found for one in self.outputs)

    @property
    def lost(self) -> int:
        """Output records expected and not found."""
        return sum(one.lost for one in self.outputs)

    @property
    def duplicated(self) -> int:
        """Output records found once too often, each."""
        return sum(one.duplicated for one in self.outputs)

    @property
    def unexpected(self) -> int:
        """Output records found that no processed input makes."""
        return sum(one.unexpected for one in self.outputs)

    @property
    def reordered(self) -> int:
        """Output records found before an output of an earlier record of the same input partition and key."""
        return sum(one.reordered for one in self.outputs)

    @property
    def differences(self) -> dict[Kind, int]:
        """How many differences of each kind."""
        return {
            Kind.LOST: self.lost,
            Kind.DUPLICATED: self.duplicated,
            Kind.TORN: self.torn,
            Kind.UNEXPECTED: self.unexpected,
            Kind.REORDERED: self.reordered,
            Kind.FAILED: self.failed,
        }

    @property
    def exactly_once(self) -> bool:
        """Whether nothing differs."""
        return not self.problems and not any(self.differences.values())

    def rows(self) -> list[tuple[str, str]]:
        """The report as a table of two columns: what, and its figures."""
        rows = [
            (
                f"input {one.partition}",
                f"committed offset {_figure(one.committed)}, {one.records:,} records",
            )
            for one in self.inputs
        ]
        rows += [
            (f"output {one.topic}", f"{one.expected:,} expected, {one.found:,} found") for one in self.outputs
        ]
        rows += [(str(kind), f"{count:,}") for kind, count in self.differences.items()]
        rows += [("problem", problem) for problem in self.problems]
        return [*rows, ("exactly once", "yes" if self.exactly_once else "NO")]


def _figure(number: int | None) -> str:
    return "none" if number is None else f"{number:,}"

"""The result of a verification: what was compared, how it differs, and where to look."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from eos.base.listing import counted
from eos.offsets import Partition
from eos.ops.check.held_back import HeldBack


class Difference(StrEnum):
    """A way in which an output can differ from what its input says."""

    LOST = "lost"  # expected, not found
    DUPLICATED = "duplicated"  # found more often than expected
    TORN = "torn"  # an input record of which some outputs were found and some were not
    UNEXPECTED = "unexpected"  # found, never expected
    MISPLACED = "misplaced"  # found in another partition than it names, or than its key's hash chooses
    REORDERED = "reordered"  # found behind an output of a later record of the same input partition
    FAILED = "failed"  # the transform raised for an input record that counts as processed


@dataclass(frozen=True, slots=True)
class Example:
    """One difference: at an input record (lost, torn, failed) or an output record (the other kinds)."""

    kind: Difference
    partition: Partition
    offset: int
    detail: str  # more about it, in words

    def __str__(self) -> str:
        return f"{self.kind}: {self.partition}@{self.offset}: {self.detail}"


@dataclass(frozen=True, slots=True)
class InputCount:
    """An input partition."""

    partition: Partition
    start: int  # the offset that the group began at
    committed: int | None
    records: int  # read from [start, committed)
    waiting: int = 0  # offsets that follow up to the last stable offset; 0 if there is no record among them
    gone: int = (
        0  # of these, deleted; whether there was a record among them cannot be seen, so they wait for ever
    )

    @property
    def passed(self) -> int:
        """Offsets that the group has passed: of records, of aborted ones and of markers."""
        return max(0, (self.committed or 0) - self.start)

    def __str__(self) -> str:
        offset = "none" if self.committed is None else f"{self.committed:,}"
        return f"committed offset {offset}, {counted(self.records, 'record')}"


@dataclass(frozen=True, slots=True)
class OutputCount:
    """An output topic: records expected, records found, and how many differ in which way."""

    topic: str
    expected: int = 0
    found: int = 0
    differences: Counter[Difference] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Compared:
    """The result of comparing expected with found outputs; see `VerificationReport`."""

    outputs: tuple[OutputCount, ...]
    torn: int
    undecided: int  # outputs whose order was not compared: nothing shows which input partition made them
    examples: tuple[Example, ...]


class Judged(Protocol):
    """What a verdict is made of."""

    @property
    def differs(self) -> bool: ...
    @property
    def records(self) -> int: ...
    @property
    def passed(self) -> int: ...
    @property
    def complete(self) -> bool: ...


def nothing_compared(group: str, passed: int) -> str:
    """Why nothing was compared of a group that has passed so many offsets, in words."""
    if not passed:
        return f"{group} has processed no record, so nothing was compared"
    return f"{group} has passed {counted(passed, 'offset')}, and no committed record is left among them, so nothing was compared"


def verdict_of(report: Judged) -> str:
    """Exactly once or not, in words."""
    if report.differs:
        return "NO"
    if not report.records:
        return f"not shown: {nothing_compared('the group', report.passed)}"
    return "yes" if report.complete else "for what is committed, yes; but not all of the input is processed"


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """Whether the output is exactly ``f(input[p][0:c])`` for each input partition p and its committed offset c.

    Attributes:
        group: the group whose committed offsets were taken.
        inputs: per input partition.
        outputs: per output topic.
        torn: input records of which some outputs were found and some were not.
        failed: input records below the committed offset for which the transform raised.
        problems: what else contradicts exactly-once, in words.
        examples: the first few differences of each kind.
        notes: what makes the verdict less certain, in words: topics that are compacted.
        held_back: input that could not be processed yet, because a transaction is open in front of it.
        order: what of the order was compared, in words.
    """

    group: str
    inputs: tuple[InputCount, ...]
    outputs: tuple[OutputCount, ...]
    torn: int = 0
    failed: int = 0
    problems: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    notes: tuple[str, ...] = ()
    held_back: tuple[HeldBack, ...] = ()
    order: str = ""

    @property
    def records(self) -> int:
        """Input records that count as processed."""
        return sum(one.records for one in self.inputs)

    @property
    def passed(self) -> int:
        """Offsets that the group has passed."""
        return sum(one.passed for one in self.inputs)

    @property
    def expected(self) -> int:
        """Output records that the processed input makes."""
        return sum(one.expected for one in self.outputs)

    @property
    def found(self) -> int:
        """Output records found."""
        return sum(one.found for one in self.outputs)

    @property
    def differences(self) -> dict[Difference, int]:
        """How many differences of each kind, over all output topics."""
        counts = Counter({Difference.TORN: self.torn, Difference.FAILED: self.failed})
        for one in self.outputs:
            counts.update(one.differences)
        return {kind: counts[kind] for kind in Difference}

    @property
    def differs(self) -> bool:
        """Whether anything contradicts exactly-once: a difference or a problem."""
        return bool(self.problems) or any(self.differences.values())

    @property
    def exactly_once(self) -> bool:
        """Whether records were processed, and nothing differs. Whether that was all of the input, `complete` says."""
        return self.records > 0 and not self.differs

    @property
    def complete(self) -> bool:
        """Whether the committed offsets stand for all of the input, up to the high watermark."""
        return not self.held_back and not any(one.waiting for one in self.inputs)

    @property
    def verdict(self) -> str:
        """Exactly once or not, in words."""
        return verdict_of(self)

    def rows(self) -> list[tuple[str, str]]:
        """The report as a table of two columns: what, and its figures."""
        return [
            *((f"input {one.partition}", str(one)) for one in self.inputs),
            *(
                (f"output {one.topic}", f"{one.expected:,} expected, {one.found:,} found")
                for one in self.outputs
            ),
            *((str(kind), f"{count:,}") for kind, count in self.differences.items()),
            *([("order", self.order)] if self.order else []),
            *(("problem", problem) for problem in self.problems),
            *(("note", note) for note in self.notes),
            *(("held back", str(one)) for one in self.held_back),
            *(
                (
                    "not processed",
                    f"{one.waiting:,} offsets of {one.partition} after the committed one"
                    + (
                        f"; {one.gone:,} of them have been deleted before they were processed"
                        if one.gone
                        else ""
                    ),
                )
                for one in self.inputs
                if one.waiting
            ),
            ("exactly once", self.verdict),
        ]

"""What a verification of tables has compared, and what differs; pure."""

from __future__ import annotations

from dataclasses import dataclass

from eos.base.listing import counted
from eos.ops.check.held_back import HeldBack
from eos.ops.verifier.report import InputCount, verdict_of
from eos.sql.tables import dead_letters


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCount:
    """One table, compared.

    Attributes:
        name: of the table.
        keys: of rows that the input makes, changes or deletes.
        expected: rows that the input makes.
        missing: of these, rows that are not there.
        changed: rows that are there with other values in the columns that the transform names.
        undeleted: rows that are there, and that the input has deleted.
        extra: rows that no input makes.
        undecided: rows whose key was changed from several input partitions, in an order that is not known: their values are not
            compared.
    """

    name: str
    keys: int
    expected: int
    missing: int
    changed: int
    undeleted: int
    extra: int
    undecided: int

    @property
    def differs(self) -> bool:
        return bool(self.missing or self.changed or self.undeleted or self.extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesReport:
    """What was compared, and what differs.

    Attributes:
        group: the group.
        inputs: per input partition; the position is its committed offset.
        tables: each table.
        letters: records that lie in ``eos_dead_letters`` and are not compared.
        skipped: records for which the transform raises, as the policy skip allows.
        failed: records for which the transform raises, under another policy and without a dead letter.
        problems: what contradicts itself, in words.
        examples: of differences, in words.
        held_back: input that could not be processed yet, because a transaction is open in front of it.
    """

    group: str
    inputs: tuple[InputCount, ...]
    tables: tuple[TableCount, ...]
    letters: int
    skipped: int
    failed: int
    problems: tuple[str, ...]
    examples: tuple[str, ...]
    held_back: tuple[HeldBack, ...]

    @property
    def records(self) -> int:
        """Input records that were compared."""
        return sum(one.records for one in self.inputs)

    @property
    def passed(self) -> int:
        """Offsets that the group has passed."""
        return sum(one.passed for one in self.inputs)

    @property
    def differs(self) -> bool:
        return bool(self.problems or self.failed) or any(one.differs for one in self.tables)

    @property
    def exactly_once(self) -> bool:
        """Whether something was compared and nothing differs."""
        return bool(self.records and self.tables) and not self.differs

    @property
    def complete(self) -> bool:
        """Whether the positions stand for all of the input, up to the high watermark."""
        return not self.held_back and not any(one.waiting for one in self.inputs)

    @property
    def verdict(self) -> str:
        """Exactly once or not, in words."""
        return verdict_of(self)

    def rows(self) -> list[tuple[str, str]]:
        """A table of it."""
        rows = [("group", self.group)]
        for one in self.inputs:
            text = f"offsets {one.start:,} to {max(one.start, one.committed or 0):,}: {counted(one.records, 'record')}"
            rows.append(
                (
                    str(one.partition),
                    f"{text}, {counted(one.waiting, 'offset')} not processed" if one.waiting else text,
                )
            )
        for table in self.tables:
            kinds = {
                "missing": table.missing,
                "changed": table.changed,
                "not deleted": table.undeleted,
                "not made by the input": table.extra,
            }
            found = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items() if count)
            text = f"{counted(table.expected, 'row')} expected: {found or 'all there, and no other'}"
            if table.undecided:
                text += (
                    f"; of {table.undecided:,} changed from several input partitions, whose order is not known, the values were "
                    "not compared"
                )
            rows.append((f"table {table.name}", text))
        if self.letters:
            rows.append(("dead letters", f"{counted(self.letters, 'record')} in {dead_letters.name}"))
        if self.skipped:
            rows.append(
                ("skipped", f"the transform raises for {counted(self.skipped, 'record')}: no row is expected")
            )
        if self.failed:
            rows.append(
                ("failed", f"the transform raises for {counted(self.failed, 'record')} before the position")
            )
        rows += [("problem", text) for text in self.problems]
        rows += [("held back", str(one)) for one in self.held_back]
        rows.append(("exactly once", self.verdict))
        return rows

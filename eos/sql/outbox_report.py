"""What a verification of an outbox has compared, and what differs; pure."""

from __future__ import annotations

from dataclasses import dataclass

from eos.base.listing import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxReport:
    """What was compared, and what differs.

    Attributes:
        group: the group.
        relayed: how many rows the committed offsets count.
        present: relayed rows that are in the table; the others were pruned.
        left_out: of the present ones, rows that can be no record: they name a topic that is no output, or their headers can't be
            read.
        waiting: committed rows that are not relayed yet.
        records: records in the topics.
        missing: relayed rows in the table without a record of their content.
        unexpected: records whose content no relayed row in the table has.
        whole: whether the topics hold all records since the first; else some were deleted.
        skips: whether the policy leaves out what Kafka takes at no try.
        examples: of differences, in words.
    """

    group: str
    relayed: int
    present: int
    left_out: int
    waiting: int
    records: int
    missing: int
    unexpected: int
    whole: bool
    skips: bool
    examples: tuple[str, ...]

    @property
    def pruned(self) -> int:
        """Relayed rows that are not in the table any more."""
        return self.relayed - self.present

    @property
    def passed(self) -> int:
        """Of the committed offsets, which count rows."""
        return self.relayed

    @property
    def too_many(self) -> int:
        """How many records there are beyond the relayed rows; below 0: how many lack."""
        return self.records - (self.relayed - self.left_out)

    @property
    def differs(self) -> bool:
        if self.pruned < 0 or (self.left_out and not self.skips):
            return True
        if not self.whole:
            # Each record is still that of a row, and of one row alone, where none was pruned.
            return not self.pruned and self.unexpected > 0
        if self.missing > 0 or self.too_many > 0:
            return True
        return not self._left_out_and_pruned if self.too_many < 0 else not self.pruned and self.unexpected > 0

    @property
    def _left_out_and_pruned(self) -> bool:
        """Whether the rows that lack records may be ones that were left out and pruned since: nothing keeps how many these are."""
        return self.too_many < 0 and self.skips and self.pruned > 0

    @property
    def not_shown(self) -> str:
        """Why nothing shows that each row is a record, in words; "" if something does."""
        if not self.records:
            return "nothing was compared"
        if not self.whole and self.pruned:
            return "records were deleted from the topics and rows were pruned, so neither says what there should be of the other"
        if self._left_out_and_pruned:
            return "records lack, and rows were pruned: under poison.policy = 'skip' nothing keeps whether these were left out"
        return ""

    @property
    def exactly_once(self) -> bool:
        """Whether something was compared and nothing differs."""
        return not self.differs and not self.not_shown

    @property
    def verdict(self) -> str:
        """Exactly once or not, in words."""
        if self.differs:
            return "NO"
        if self.not_shown:
            return f"not shown: {self.not_shown}"
        if not self.whole:
            return "no record is too many; whether one was lost can't be seen, for records were deleted"
        return "yes" if self.complete else "for what is relayed, yes; but not every committed row is"

    @property
    def complete(self) -> bool:
        """Whether every committed row is relayed."""
        return not self.waiting

    def rows(self) -> list[tuple[str, str]]:
        """The report in lines."""
        rows = [
            ("group", self.group),
            ("relayed", f"{counted(self.relayed, 'row')}; {max(0, self.pruned):,} of them pruned since"),
            ("waiting", counted(self.waiting, "row")),
            ("records", f"{self.records:,}"),
        ]
        if self.left_out:
            text = f"{counted(self.left_out, 'row')} with a topic that is no output, or with headers in no form that is known"
            if not self.skips:
                text += ": lost, unless poison.policy was 'skip' when they were relayed (verify with that)"
            rows.append(("left out", text))
        if self.pruned < 0:
            text = f"{counted(-self.pruned, 'row')} more than were relayed, before the position"
            rows.append(("problem", f"{text}: their numbers or the offset were set by hand"))
        if self.whole:
            rows.append(("missing", f"{counted(self.missing, 'row')} without a record"))
            if self.too_many > 0:
                rows.append(
                    (
                        "too many",
                        f"{counted(self.too_many, 'record')} more than rows: doubled, or another program writes to these topics",
                    )
                )
            elif self.too_many < 0:
                rows.append(("lost", f"{counted(-self.too_many, 'record')} fewer than relayed rows"))
        else:
            rows.append(("retention", "records were deleted, so rows without one are no fault"))
        if not self.pruned:
            rows.append(("unexpected", f"{counted(self.unexpected, 'record')} that no row has"))
        rows.append(("exactly once", self.verdict))
        return rows

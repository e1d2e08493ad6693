"""Compared: what a comparison of all that a job wrote has found, whatever it writes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from eos.offsets import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One comparison.

    Attributes:
        records: how much of the input counts as processed.
        complete: whether that is all of it.
        against: how the output differs, in words.
        shown: its figures, as pairs of name and value.
        committed: the place in each input partition.
        empty: the input makes nothing, so nothing could be lost or doubled.
    """

    records: int
    complete: bool = True
    against: Sequence[str] = ()
    shown: Sequence[tuple[str, str]] = ()
    committed: Mapping[Partition, int] = field(default_factory=dict)
    empty: bool = False

"""Ordering: whether an output partition can be a merge of what its input partitions make, each in the order of its input.

Most outputs show which input partition they were made from. Those that several input partitions make alike do not, and
any attribution might be the right one. So all attributions are followed, as *states*. A state says, for each input
partition, which of its outputs was found last. A record is in order if it can follow in some state. The states in which
it cannot are given up.

Two rules keep the states few, and the verdict exact. An attribution takes the earliest output that is possible: what can
follow a later one can follow it, too. And a state in which no input partition is further on than in another state
replaces that one, for the same reason. Where there are too many states still (input partitions with equal contents), a
record is passed over: the check is then less strict, and never too strict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

State = dict[int, int]  # input partition -> the last of its outputs that was found, by its number

_STATES = 64
_BRANCHES = 512  # from one record
_COMPARISONS = 50_000_000  # of numbers, for all of a run: measured, up to 20 s
_OF_A_BRANCH = 20  # comparisons that take as long as making a branch, with its look-up


class Step(NamedTuple):
    """A found record. ``source`` and ``expected`` are None if several input partitions make it."""

    place: int
    found: int
    identity: int
    source: int | None
    expected: int | None


class Break(NamedTuple):
    """A found record that is out of order; and the later output that it stands behind, if one can be named."""

    place: int
    found: int
    expected: int | None
    behind: int | None


class Ordering:
    """One pass over the found records of all output partitions.

    Args:
        sources: the input partitions that make outputs of an identity.
        following: of an identity, an input partition, one of its outputs and an output partition: the first later output
            of that input partition with this identity that may be in that output partition.

    Attributes:
        undecided: how many records were passed over, because nothing shows which input partition made them.
    """

    def __init__(
        self, sources: Callable[[int], Sequence[int]], following: Callable[[int, int, int, int], int | None]
    ) -> None:
        self._sources = sources
        self._following = following
        self._left = _COMPARISONS
        self.undecided = 0

    def breaks(self, steps: Iterable[Step]) -> Iterator[Break]:
        """The records out of order; ``steps`` have one output partition after another, each in its order."""
        place = None
        states: list[State] = []
        for step in steps:
            if step.place != place:
                place, states = step.place, [{}]
            if step.source is not None and step.expected is not None:
                behind = self._follow(states, step.source, step.expected)
                if behind is not None:
                    yield Break(step.place, step.found, step.expected, behind)
            elif not self._branch(states, step):
                yield Break(step.place, step.found, None, None)

    def _follow(self, states: list[State], source: int, expected: int) -> int | None:
        """Take the record of a known output; what it stands behind if that is a later one in every state."""
        possible = [state for state in states if state.get(source, -1) < expected]
        behind = None if possible else min(state[source] for state in states)
        states[:] = possible or states
        for state in states:
            state[source] = expected
        if len(states) > 1:
            states[:] = self._smallest(states) if self._left > 0 else [_least(states)]
        return behind

    def _branch(self, states: list[State], step: Step) -> bool:
        """Take a record that several input partitions make; false if none of them can have made it here."""
        sources = self._sources(step.identity)
        if self._left <= 0 or len(states) * len(sources) > _BRANCHES:
            self.undecided += 1
            return True
        branches = []
        self._left -= len(states) * len(sources) * _OF_A_BRANCH
        for state in states:
            for source in sources:
                after = state.get(source, -1)
                expected = self._following(step.identity, source, after, step.place)
                if expected is not None:
                    branches.append({**state, source: expected})
        if not branches:
            return False
        smallest = self._smallest(branches)
        if len(smallest) > _STATES:
            self.undecided += 1
        else:
            states[:] = smallest
        return True

    def _smallest(self, states: list[State]) -> list[State]:
        """Those that no other one replaces."""
        kept: list[State] = []
        for state in sorted(states, key=_progress):
            self._left -= len(kept) * len(state) + 1
            if not any(_replaces(one, state) for one in kept):
                kept.append(state)
        return kept


def _progress(state: State) -> int:
    return sum(state.values()) + len(state)  # as if each began at -1


def _least(states: list[State]) -> State:
    """A state that replaces all of these, if less strictly than each of them."""
    everywhere = set.intersection(*(set(state) for state in states))
    return {source: min(state[source] for state in states) for source in everywhere}


def _replaces(one: State, other: State) -> bool:
    """Whether no input partition is further on in the one than in the other."""
    for source, last in one.items():  # noqa: SIM110 - half the time of all(), and this is most of a search
        if other.get(source, -1) < last:
            return False
    return True

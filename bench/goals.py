"""Goals: what figures are held against. The benchmark says of each whether it is met."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Protocol

from bench.results import say, spread


class Measured(Protocol):
    """What one contender did in one round; its figures are attributes beside these."""

    @property
    def contender(self) -> str: ...
    @property
    def round(self) -> int: ...


def ratios(outcomes: Sequence[Measured], name: str, reference: str, field: str) -> list[float]:
    """One ratio per round: figures of different rounds are not compared, the machine may have changed."""

    def by_round(contender: str) -> Mapping[int, float]:
        return {o.round: float(getattr(o, field)) for o in outcomes if o.contender == contender}

    own, other = by_round(name), by_round(reference)
    return [own[number] / other[number] for number in own if number in other]


def at_least(aim: float, what: str, figures: Sequence[float]) -> bool:
    """Say whether the middle one of the figures is at least what is aimed at. True if it is, or if there are none."""
    return not figures or _said("at least", aim, what, figures, met=statistics.median(figures) >= aim)


def at_most(aim: float, what: str, figures: Sequence[float]) -> bool:
    """As `at_least`, of a figure that is better the smaller it is."""
    return not figures or _said("at most", aim, what, figures, met=statistics.median(figures) <= aim)


def _said(how: str, aim: float, what: str, figures: Sequence[float], *, met: bool) -> bool:
    say(f"{'met   ' if met else 'MISSED'}  {what}: {spread(figures)}, aim {how} {aim:g}")
    return met

"""Goals: what figures are held against. The benchmark says of each whether it is met."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.results import say, spread


def at_least(aim: float, what: str, figures: Sequence[float]) -> bool:
    """Say whether the middle one of the figures is at least what is aimed at. True if it is, or if there are none."""
    return not figures or _said("at least", aim, what, figures, met=statistics.median(figures) >= aim)


def at_most(aim: float, what: str, figures: Sequence[float]) -> bool:
    """As `at_least`, of a figure that is better the smaller it is."""
    return not figures or _said("at most", aim, what, figures, met=statistics.median(figures) <= aim)


def _said(how: str, aim: float, what: str, figures: Sequence[float], *, met: bool) -> bool:
    say(f"{'met   ' if met else 'MISSED'}  {what}: {spread(figures)}, aim {how} {aim:g}")
    return met

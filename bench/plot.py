"""The figure of a comparison: rates with their spread, and what they cost."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.results import say

if TYPE_CHECKING:
    from bench.copying import Outcome

_BAR, _COST = "#3b6ea5", "#c77c30"


def plot(outcomes: Sequence[Outcome], beside: Path) -> None:
    """Draw the contenders' rates and CPU seconds, as an SVG of the name of the figures' file."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(one.contender for one in outcomes))
    rates = [[one.rate / 1000 for one in outcomes if one.contender == name] for name in names]
    costs = [[one.cpu_per_million for one in outcomes if one.contender == name] for name in names]
    figure = Figure(figsize=(10, 0.8 + 0.4 * len(names)), layout="constrained")
    FigureCanvasSVG(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, figures, colour, title in (
        (left, rates, _BAR, "1,000 records/s"),
        (right, costs, _COST, "client CPU s per million records"),
    ):
        middles = [statistics.median(own) for own in figures]
        below = [middle - min(own) for middle, own in zip(middles, figures, strict=True)]
        above = [max(own) - middle for middle, own in zip(middles, figures, strict=True)]
        axes.barh(names, middles, color=colour, xerr=(below, above), capsize=2)
        axes.set_title(title, loc="left", fontsize="medium")
    left.invert_yaxis()
    path = beside.with_suffix(".svg")
    figure.savefig(path, format="svg", metadata={"Date": None})
    say(f"drawn in {path}")

"""at_once: the same question about many things, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")

_AT_ONCE = 8  # mostly waits; but each may need a client with threads of its own


def at_once(work: Callable[[S], T], over: Iterable[S]) -> dict[S, T]:
    """The answer for each; raises what the first of them, in their order, has raised."""
    wanted = list(over)
    with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(wanted)))) as pool:
        return dict(zip(wanted, pool.map(work, wanted), strict=True))

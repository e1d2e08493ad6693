"""Progress of a run until caught up: a bar on a terminal, a log line now and then elsewhere."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from eos.observe import Board

Update = Callable[[], None]

_LINE_EVERY_S = 10.0
_POLL_S = 0.5
_THREAD_END_S = 5.0

log = logging.getLogger("eos.progress")


@contextmanager
def bar(board: Board) -> Iterator[Update]:
    """A bar on stderr while the block runs."""
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("records"),
        progress.TimeElapsedColumn(),
    )
    figures = Figures(board)
    with progress.Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task("catching up", total=None)

        def update() -> None:
            done, total = figures.read()
            # A full bar would say that all is done, but nobody has measured yet how much there is.
            shown.update(task, completed=done, total=total if total > done else None)

        yield update


@contextmanager
def polled_bar(description: str, unit: str, read: Callable[[], tuple[int, int]]) -> Iterator[None]:
    """A bar on stderr while the block runs, by asking now and then for (done, total)."""
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn(unit),
        progress.TimeElapsedColumn(),
    )
    ended = threading.Event()
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(description, total=None)

        def poll() -> None:
            while not ended.wait(_POLL_S):
                try:
                    done, total = read()
                except Exception:  # noqa: BLE001 - who is asked may be gone already; a bar is no reason to fail
                    return
                shown.update(task, completed=done, total=total or None)

        thread = threading.Thread(target=poll, name="eos-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(_THREAD_END_S)


@contextmanager
def lines(board: Board) -> Iterator[Update]:
    """A log line every ten seconds while the block runs."""
    figures = Figures(board)
    next_at = time.monotonic() + _LINE_EVERY_S

    def update() -> None:
        nonlocal next_at
        if time.monotonic() >= next_at:
            next_at = time.monotonic() + _LINE_EVERY_S
            log.info("catching up: %d of about %d records", *figures.read())

    yield update


class Figures:
    """What the workers have processed, and what that and the rest come to, in records.

    The rest is the lag, which workers measure every few seconds; it counts transaction markers too, so the
    total is a little too high until the end.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._lag = -1
        self._total = 0

    def read(self) -> tuple[int, int]:
        """(processed, total) as last reported."""
        processed = lag = 0
        for metric in self._board.collect():
            if metric.name == "eos_records_in":
                processed = sum(int(sample.value) for sample in metric.samples)
            elif metric.name == "eos_lag_records":
                lag = sum(int(sample.value) for sample in metric.samples)
        if lag != self._lag:  # a new measurement
            self._lag, self._total = lag, processed + lag
        return processed, max(processed, self._total)

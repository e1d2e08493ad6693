"""Progress of a command: bars on a terminal, a log line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from eos.observe import Board
from eos.settings import Settings
from eos.settings.shown import DEFAULT

Update = Callable[[str, int, int], None]  # what is done, how much of it, of how much (0: not known)

_LINE_EVERY_S = 10.0
_POLL_S = 0.5
_THREAD_END_S = 5.0

log = logging.getLogger("eos.progress")


def shows_bars(settings: Settings) -> bool:
    """Whether there is a terminal for bars, and the user has not asked for log lines by a level or format."""
    observe = settings.shown()["observe"]
    return sys.stderr.isatty() and observe["log_level"].source == observe["log_format"].source == DEFAULT


def quiet(settings: Settings) -> Settings:
    """These settings with warnings as the only log lines: others would tear a bar."""
    return settings.model_copy(
        update={"observe": settings.observe.model_copy(update={"log_level": "warning"})}
    )


@contextmanager
def bars(unit: str = "", *, transient: bool = False) -> Iterator[Update]:
    """Bars on stderr while the block runs, one for each thing that is done; none where that is no terminal."""
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description:<14}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn(unit),
        progress.TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with progress.Progress(
        *columns, console=console, transient=transient, disable=not console.is_terminal
    ) as shown:
        tasks: dict[str, progress.TaskID] = {}

        def update(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = shown.add_task(what, total=None)
            shown.update(tasks[what], completed=done, total=total or None)

        yield update


@contextmanager
def polled_bar(what: str, unit: str, read: Callable[[], tuple[int, int]]) -> Iterator[None]:
    """A bar on stderr while the block runs; a thread reads (done, total) now and then."""
    ended = threading.Event()
    with bars(unit, transient=True) as update:

        def poll() -> None:
            while not ended.wait(_POLL_S):
                try:
                    update(what, *read())
                except Exception:  # noqa: BLE001 - the process that is asked may have ended; a bar is no reason to fail
                    return

        thread = threading.Thread(target=poll, name="eos-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(_THREAD_END_S)


@contextmanager
def catching_up(board: Board, *, with_bar: bool) -> Iterator[Callable[[], None]]:
    """How far a run until caught up is: a bar, or a log line every ten seconds; what is yielded brings it up to date."""
    figures = Figures(board)
    if with_bar:
        with bars("records") as update:

            def show() -> None:
                done, total = figures.read()
                # A full bar would say that all is done, but how much there is has not been measured yet.
                update("catching up", done, total if total > done else 0)

            yield show
        return
    next_at = time.monotonic() + _LINE_EVERY_S

    def write() -> None:
        nonlocal next_at
        if time.monotonic() >= next_at:
            next_at = time.monotonic() + _LINE_EVERY_S
            log.info("catching up: %d of about %d records", *figures.read())

    yield write


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

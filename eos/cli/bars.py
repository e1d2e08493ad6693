"""Bars: the progress of a command, on a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from eos.base.printable import printable
from eos.settings import Settings
from eos.settings.shown import DEFAULT

Update = Callable[[str, int, int], None]  # what is done, how much of it, of how much (0: not known)

_POLL_S = 0.5
_THREAD_END_S = 5.0


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
    from rich.markup import escape

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
                # Names from outside (topics) have no say in colours, links or the cursor.
                tasks[what] = shown.add_task(escape(printable(what)), total=None)
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
def live_line(*, with_bar: bool) -> Iterator[Update]:
    """One line on stderr that changes while the block runs: a text, and a bar if something has an end."""
    from rich import progress
    from rich.console import Console

    columns = [progress.BarColumn(bar_width=20)] if with_bar else [progress.SpinnerColumn()]
    with progress.Progress(
        *columns, progress.TextColumn("{task.description}"), console=Console(stderr=True), transient=True
    ) as shown:
        task = shown.add_task("starting", total=None)

        def update(what: str, done: int, total: int) -> None:
            shown.update(task, description=what, completed=done, total=total or None)

        yield update

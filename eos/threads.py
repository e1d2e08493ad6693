"""Threads that make one call beside their caller."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable


def beside(function: Callable[[], object], *, name: str) -> threading.Event:
    """Make a call in a thread of its own; the event is set when it is over.

    Where the interpreter ends, the call is made here: no thread begins any more, and Python 3.11 would wait for one for ever. A
    generator that holds a session or a producer in a ``with`` block, and that nobody has closed, is closed there.
    """
    over = threading.Event()

    def call() -> None:
        try:
            function()
        finally:
            over.set()

    if sys.is_finalizing():
        call()
    else:
        threading.Thread(target=call, name=name, daemon=True).start()
    return over

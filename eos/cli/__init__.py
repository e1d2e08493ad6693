"""The `eos` command: one module for each, named in `app`. Worker processes import this package too, so it loads nothing by itself."""

import atexit
import gc
import os
import signal

__all__ = ["main"]


def main() -> None:
    """The console script: run the command line and end the process with the exit code that fits."""
    # The last exit handler of all: the collections behind it have nothing to go through then, and a tenth of a second less to do.
    atexit.register(gc.freeze)
    # Until the command runs there is nothing to settle, and Ctrl-C ends the process itself. Python's own handler would print where its
    # imports stood; and in a callback of theirs Python drops what it raises, and the command would go on. The kernel keeps this one
    # from the first process of a container.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler and os.getpid() != 1:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from eos.cli.command_line import end_with_code

    end_with_code()

"""The `eos` command. Worker processes import this package too, so it loads nothing by itself."""

import atexit
import gc

__all__ = ["main"]


def main() -> None:
    """The console script: run the command line and end the process with the exit code that fits."""
    # The last exit handler of all: the collections behind it have nothing to go through then, and a tenth of a second less to do.
    atexit.register(gc.freeze)
    from eos.cli.process import end_with_code

    end_with_code()

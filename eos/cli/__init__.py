"""The `eos` command. Worker processes import this package too, so it loads nothing by itself."""

__all__ = ["main"]


def main() -> None:
    """The console script: run the command line and end the process with the exit code that fits."""
    from eos.cli.process import end_with_code

    end_with_code()

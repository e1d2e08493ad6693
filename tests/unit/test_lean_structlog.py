"""structlog as the processes of eos load it: without rich, until something uses that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_REPOSITORY = Path(__file__).parents[2]


def printed_by(code: str) -> str:
    """What a new process prints, which has loaded nothing else."""
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=_REPOSITORY, capture_output=True, text=True, check=True, timeout=60
    )
    return ended.stdout


def test_worker_loads_neither_rich_nor_pygments() -> None:
    loaded = printed_by(
        "import sys, eos.observe, eos.runner.worker_process, eos.cli.listening\n"
        "print(*(name for name in sys.modules if name.startswith(('rich.', 'pygments'))))"
    )
    assert set(loaded.split()) <= {"rich._extension"}


def test_code_of_a_job_gets_tracebacks_of_rich_from_structlog() -> None:
    log = (
        "import eos.observe, structlog, sys\n"
        "from structlog import dev, tracebacks, processors\n"
        "text = structlog.wrap_logger(structlog.PrintLogger(), processors=[dev.ConsoleRenderer(colors=False)])\n"
        "def fail(here):\n    return 1 / here\n"
        "def as_fields(logger, name, event):\n"
        "    return repr(processors.ExceptionRenderer(tracebacks.ExceptionDictTransformer(show_locals=True))(logger, name, event))\n"
        "fields = structlog.wrap_logger(structlog.PrintLogger(), processors=[as_fields])\n"
        "try:\n    fail(0)\n"
        "except ZeroDivisionError:\n    text.error('in text', exc_info=True)\n    fields.error('in fields', exc_info=True)\n"
        "import rich.pretty, rich.console, rich.traceback\n"
        "assert rich.pretty is sys.modules['rich.pretty'], rich.pretty\n"
        "assert isinstance(rich.console.Console, type)\n"
    )
    shown = printed_by(log)
    assert "╭" in shown
    assert "ZeroDivisionError" in shown
    assert "'here': '0'" in shown

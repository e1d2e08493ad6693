"""What new processes import: no more than they need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.patience import PATIENCE_S

_REPOSITORY = Path(__file__).parents[2]
MOST_MODULES = 600  # there are 500; each of the heavy packages brings hundreds
HEAVY = {"pyspark", "pandas", "pyarrow", "kafka", "typer", "prometheus_client", "py4j"}
_START_UP = """
import sys
# A worker imports the console script's module, and its own part of the command.
import eos.cli, eos.cli.worker_listener
print(*{"typer", "rich", "eos.cli.app"}.intersection(sys.modules))
import eos.cli.app, eos.spark
print(*{"rich.progress", "eos.ops.observe", "eos.local", "kafka", "pyspark", "pyarrow"}.intersection(sys.modules))
"""


# Before a worker's process is started: whatever is loaded here makes it, and with it the run, begin later.
_BEFORE_A_WORKER = """
import sys, eos.runner.processes
print(*{"confluent_kafka", "pydantic", "tenacity", "eos.settings", "eos.runner.worker"}.intersection(sys.modules))
"""


def printed_by(code: str) -> str:
    """What a new process prints, which has loaded nothing else."""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=_REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    return ended.stdout


def test_worker_loads_neither_rich_nor_pygments() -> None:
    loaded = printed_by(
        "import sys, eos.ops.observe, eos.runner.worker_process, eos.cli.worker_listener\n"
        "print(*(name for name in sys.modules if name.startswith(('rich.', 'pygments'))))"
    )
    assert set(loaded.split()) <= {"rich._extension"}


def test_a_worker_whose_job_does_not_trace_loads_nothing_of_opentelemetry() -> None:
    code = (
        "import sys; from eos.ops.observe import Telemetry, WorkerState; from eos.events import SessionOpened; "
        "Telemetry(WorkerState().registry, 0)(SessionOpened('a.b.i.0', 0.1)); "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=PATIENCE_S).returncode == 0


def test_start_up_loads_no_more_than_it_needs() -> None:
    command = [sys.executable, "-c", _START_UP]
    done = subprocess.run(
        command, cwd=_REPOSITORY, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert done.stdout == "\n\n"


def test_a_workers_process_is_started_before_anything_heavy_is_loaded() -> None:
    assert printed_by(_BEFORE_A_WORKER) == "\n"


def test_import_needs_neither_java_nor_optional_nor_heavy_packages_and_is_quick() -> None:
    code = "import sys; from eos import *; print(*sys.modules)"
    without_java = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {"PATH": ""}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        check=True,
        env=without_java,
        text=True,
        timeout=PATIENCE_S,
    )
    modules = done.stdout.split()
    assert not HEAVY & {name.partition(".")[0] for name in modules}
    assert len(modules) < MOST_MODULES

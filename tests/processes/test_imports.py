"""What new processes import: no more than they need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_REPOSITORY = Path(__file__).parents[2]
IMPORT_LIMIT_S = 1.0
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
        [sys.executable, "-c", code], cwd=_REPOSITORY, capture_output=True, text=True, check=True, timeout=60
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
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_start_up_loads_no_more_than_it_needs() -> None:
    command = [sys.executable, "-c", _START_UP]
    done = subprocess.run(command, cwd=_REPOSITORY, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "\n\n"


def test_a_workers_process_is_started_before_anything_heavy_is_loaded() -> None:
    assert printed_by(_BEFORE_A_WORKER) == "\n"


def test_import_needs_neither_java_nor_optional_nor_heavy_packages_and_is_quick() -> None:
    """Seconds of processor time, the best of three: a busy machine must not fail it."""
    code = (
        "import sys, time; from eos import *; "
        "print(time.process_time(), *{name.partition('.')[0] for name in sys.modules})"
    )
    without_java = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {"PATH": ""}
    took_s: list[float] = []
    while not took_s or (len(took_s) < 3 and min(took_s) >= IMPORT_LIMIT_S):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            capture_output=True,
            check=True,
            env=without_java,
            text=True,
            timeout=60,
        )
        took, *modules = done.stdout.split()
        took_s.append(float(took))
        assert not HEAVY & set(modules)
    assert min(took_s) < IMPORT_LIMIT_S

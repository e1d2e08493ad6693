"""Commands whose standard streams are closed or full: they end as they would, without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.jobs_for_faults import fault_job

_REPOSITORY = Path(__file__).parents[2]
_COMMANDS = [
    "config show",
    "config describe kafka",
    "acl --help",
    "run no.such:job --set kafka.bootstrap_servers=127.0.0.1:1",
    "verify no.such:job --set kafka.bootstrap_servers=127.0.0.1:1",
    "show topic --at x",
    "--version",
]
_EXPECTED = [0, 0, 0, 2, 2, 2, 0]


def _ends(command: str, redirection: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    line = f'exec "$0" -m eos.cli {command} {redirection}'
    done = subprocess.run(
        ["/bin/sh", "-c", line, sys.executable],
        cwd=_REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | (env or {}),
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("command", "code"), list(zip(_COMMANDS, _EXPECTED, strict=True)))
def test_a_command_with_a_closed_stream_ends_as_it_would(command: str, code: int, closed: str) -> None:
    ended, text = _ends(command, closed)
    assert ended == code, text
    assert "Traceback" not in text


@pytest.mark.broker
@pytest.mark.parametrize(
    "closed",
    [
        "<&- >&- 2>&-",
        pytest.param(">&- 2>&-", marks=pytest.mark.slow),
        pytest.param("<&- >&-", marks=pytest.mark.slow),
    ],
)
def test_a_job_with_closed_streams_processes_its_input(bootstrap: str, closed: str) -> None:
    """The stream of one took the number of another, and workers began with a pipe of their parent's as stderr."""
    job = fault_job(bootstrap)
    job.load(bootstrap, 20)
    settings = f"--set kafka.bootstrap_servers={bootstrap} --set group={job.group}"
    line = f"run tests.support.jobs_for_faults:fault --start earliest --until-caught-up {settings}"
    code, text = _ends(line, closed, job.environment)
    assert code == 0, text
    assert "Traceback" not in text
    assert job.check(bootstrap).processed == 20


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("command", ["config describe", "--version", "acl --help"])
def test_an_answer_that_stdout_does_not_take_is_said_in_a_line(command: str) -> None:
    code, text = _ends(command, ">/dev/full")
    assert code == 1
    assert text == "eos: stdout takes no more: No space left on device. Fix: send it where there is room\n"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    done = subprocess.run(
        [sys.executable, "-m", "eos.cli", "init", "orders", "--app-dir", str(file / "folder")],
        cwd=_REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"COLUMNS": "80"},
    )
    assert done.returncode == 2, done.stderr
    assert "cannot be written: Not a directory. Fix: " in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_while_an_error_is_printed_is_no_traceback() -> None:
    program = (
        "import sys, eos.cli.command_line as p\n"
        "def complain(message, **_): raise KeyboardInterrupt\n"
        "p.complain = complain\n"
        "p.end_with_code(['show', 'topic', '--at', 'x'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr == ""

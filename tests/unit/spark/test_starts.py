"""A session whose JVM does not come up: a signal is no wrong setting. PySpark's own launch, of a program in Java's place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from eos.errors import ConfigError, UnclassifiedError
from tests.support.patience import PATIENCE_S

_START = """
import sys
from eos.spark.session.session import build_session
try:
    build_session("x", "local[1]")
except Exception as error:
    print(type(error).__name__, error)
"""


def started(tmp_path: Path, *, program: str) -> str:
    """What comes of a start with a program in the place of spark-submit."""
    launcher = tmp_path / "bin" / "spark-submit"
    launcher.parent.mkdir()
    launcher.write_text(f"#!/bin/sh\n{program}\n")
    launcher.chmod(0o755)
    ended = subprocess.run(
        [sys.executable, "-c", _START],
        env=os.environ | {"SPARK_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return ended.stdout


@pytest.mark.parametrize("program", ["kill -9 $$", "kill -15 $$", "exit 137"])
def test_java_that_is_killed_while_the_session_starts_is_no_wrong_setting(
    tmp_path: Path, program: str
) -> None:
    """It was exit code 2, after which no restart helps."""
    said = started(tmp_path, program=program)
    assert said.startswith(f"{UnclassifiedError.__name__} the driver's JVM has ended")


def test_java_that_refuses_its_options_is_a_wrong_setting(tmp_path: Path) -> None:
    assert started(tmp_path, program="exit 1").startswith(f"{ConfigError.__name__} Spark did not start")


# The port that PySpark waits for is given in a file of its own; the process behind it is gone by the first call.
_WITH_A_PORT = """
"$PYTHON" - "$_PYSPARK_DRIVER_CONN_INFO_PATH" <<'END'
import os, struct, sys
made = struct.pack(">I", 1) + struct.pack(">I", 6) + b"secret"
with open(sys.argv[1] + "~", "wb") as file:
    file.write(made)
os.rename(sys.argv[1] + "~", sys.argv[1])
END
sleep 0.5
kill -9 $$
"""


def test_java_that_is_killed_behind_its_port_is_no_wrong_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHON", sys.executable)
    said = started(tmp_path, program=_WITH_A_PORT)
    assert said.startswith(f"{UnclassifiedError.__name__} the driver's JVM has ended")

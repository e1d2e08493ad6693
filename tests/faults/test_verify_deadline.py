"""`eos verify --timeout` and Ctrl-C where a transform hangs: signs of life, and the exit code of a deadline."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from eos.exits import ExitCode
from tests.support.command_line import Eos
from tests.support.observer import create_topics, load, unique
from tests.support.patience import PATIENCE_S
from tests.support.processes import running_module

pytestmark = pytest.mark.broker

MODULE = """
import hashlib, os, time
from eos import Job, OutputRecord

def copied(record):
    if os.environ.get("HANGS") == "waits":
        time.sleep(1_000)
    elif os.environ.get("HANGS") == "computes":  # in C, without Python's lock: no signal is answered
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000_000)
    return [OutputRecord({out!r}, record.value, record.key)]

job = Job(name={name!r}, inputs=[{source!r}], outputs=[{out!r}], transform=copied)
"""


@pytest.fixture
def verifying(bootstrap: str, eos: Eos, tmp_path: Path) -> list[str]:
    """The command line of a verification, of a job that has run."""
    source, out, name = unique("in"), unique("out"), unique("job")
    create_topics(bootstrap, {source: 1, out: 1})
    load(bootstrap, source, 5, "v")
    module = unique("hanging").replace("-", "_")
    (tmp_path / f"{module}.py").write_text(MODULE.format(source=source, out=out, name=name))
    where = ["--app-dir", str(tmp_path), "--set", f"kafka.bootstrap_servers={bootstrap}"]
    assert (
        eos("run", f"{module}:job", "--until-caught-up", "--start", "earliest", *where).code == ExitCode.DONE
    )
    return ["verify", f"{module}:job", *where]


@pytest.mark.parametrize("hangs", ["waits", pytest.param("computes", marks=pytest.mark.slow)])
def test_verify_ends_at_its_deadline_with_its_exit_code(verifying: list[str], hangs: str) -> None:
    with running_module("eos.cli", *verifying, "--timeout", "20", env={"HANGS": hangs}) as child:
        began = time.monotonic()
        assert child.wait(PATIENCE_S) == ExitCode.UNAVAILABLE, child.lines
        assert time.monotonic() - began > 20
    said = "\n".join(child.lines)
    assert "reading input: 0 of " in said
    assert "not done before the deadline of 20 s" in said


def test_ctrl_c_ends_a_verification_whose_transform_hangs(verifying: list[str]) -> None:
    with running_module("eos.cli", *verifying, env={"HANGS": "waits"}) as child:
        child.wait_line("reading input: 0 of ", PATIENCE_S)
        child.signal(signal.SIGINT)
        assert child.wait(PATIENCE_S) == 128 + signal.SIGINT

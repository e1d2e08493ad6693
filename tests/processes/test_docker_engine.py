"""CI's script for a Docker engine, where it cannot or must not do anything: one line says why, nothing is touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S

_REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A copy, because it notes beside itself which engine it has started."""
    copy = tmp_path / "tree" / ".ci" / "docker_engine"
    copy.parent.mkdir(parents=True)
    shutil.copy(_REPOSITORY / ".ci" / "docker_engine", copy)
    return copy


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with Docker."""
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as process:
        yield process
        process.kill()


def test_engine_that_does_not_answer_where_the_environment_says_is_not_replaced(script: Path) -> None:
    done = run(script, "start", DOCKER_HOST="tcp://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stdout == (
        "No Docker engine, so the tests on containers are skipped: "
        "nothing answers at DOCKER_HOST=tcp://127.0.0.1:1.\n"
    )


def test_who_is_not_root_gets_one_line(script: Path, tmp_path: Path) -> None:
    stub(tmp_path, "docker", "exit 1")
    stub(tmp_path, "id", 'if [ "$1" = -u ]; then echo 1000; else echo somebody; fi')
    done = run(script, "start", PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert done.stdout.count("\n") == 1
    assert "none answers to somebody, and only root can start one" in done.stdout


def test_engine_that_runs_already_is_used_and_left_alone(script: Path, tmp_path: Path) -> None:
    stub(tmp_path, "docker", 'if [ "$1" = version ]; then echo 99.1; fi')
    stub(tmp_path, "docker-compose", "exit 0")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    done = run(script, "start", PATH=path)
    assert (done.returncode, done.stdout) == (0, "A Docker engine answers: version 99.1.\n")
    assert not (script.parents[1] / ".eos").exists(), "nothing to end"
    assert run(script, "stop", PATH=path).returncode == 0


def test_stop_ends_no_process_that_only_has_the_number(
    script: Path, bystander: subprocess.Popen[bytes]
) -> None:
    """A note that was left by an interrupted run: its number is somebody else's by now."""
    noted = script.parents[1] / ".eos" / "dockerd.pid"
    noted.parent.mkdir()
    noted.write_text(f"{bystander.pid} 12345\n")
    done = run(script, "stop")
    assert (done.returncode, done.stdout) == (0, "")
    assert bystander.poll() is None
    assert not noted.exists()


def stub(tmp_path: Path, name: str, does: str) -> None:
    """A command of that name, for PATH."""
    command = tmp_path / "bin" / name
    command.parent.mkdir(exist_ok=True)
    command.write_text(f"#!/bin/sh\n{does}\n")
    command.chmod(0o755)


def run(script: Path, verb: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "DOCKER_HOST"}
    return subprocess.run(
        [script, verb],
        env=kept | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

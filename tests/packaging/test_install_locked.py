"""The lock is installed by uv, and by pip where uv cannot be had or fails; both with the hashes of the lock."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S

SCRIPT = Path(__file__).parents[2] / ".ci/install_locked"
LOCK = "one==1 \\\n    --hash=sha256:1\nuv==2 \\\n    --hash=sha256:2\nzoo==3 \\\n    --hash=sha256:3\n"


@pytest.fixture
def said(tmp_path: Path) -> Path:
    """The folder of a project whose python and uv write down what they are called with; nothing fails yet."""
    (tmp_path / "requirements.lock").write_text(LOCK)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name in ("python", "uv"):
        program = tmp_path / ".venv/bin" / name
        program.write_text(
            f"#!/bin/sh\n"
            f'if [ "$3" = config ]; then [ -z "$TEST_INDEX" ] || echo "$TEST_INDEX"; exit; fi\n'
            f'for file; do :; done\necho "{name} $* index=$UV_DEFAULT_INDEX" >>calls\ncat "$file" >>calls\n'
            f'case " $TEST_BROKEN " in *" {name}-$2 "*|*" {name}-${{4}} "*) exit 1;; esac\n'
        )
        program.chmod(0o755)
    return tmp_path


def installed(project: Path, **environment: str) -> list[str]:
    """What was asked for, call by call: the program, then the distributions of the file it was given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    done = subprocess.run(
        [SCRIPT],
        cwd=project,
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    calls: list[str] = []
    for line in (project / "calls").read_text().splitlines():
        if line.startswith(("python ", "uv ")):
            assert "--require-hashes" in line
            calls.append(line.partition(" ")[0] + " " + line.rpartition(" ")[2] + ":")
        elif not line.startswith(" "):
            calls[-1] += " " + line.partition("==")[0]
    return calls


def test_uv_is_installed_by_pip_and_installs_the_whole_lock(said: Path) -> None:
    assert installed(said) == ["python index=: uv", "uv index=: one uv zoo"]


@pytest.mark.parametrize("environment", [{"PIP_INDEX_URL": "mirror"}, {"TEST_INDEX": "mirror"}])
def test_uv_is_given_the_index_that_pip_is_configured_for(said: Path, environment: dict[str, str]) -> None:
    assert installed(said, **environment)[1] == "uv index=mirror: one uv zoo"


def test_where_uv_fails_pip_installs_all_but_uv(said: Path) -> None:
    assert installed(said, TEST_BROKEN="uv-install") == [
        "python index=: uv",
        "uv index=: one uv zoo",
        "python index=: one zoo",
    ]

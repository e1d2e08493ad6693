"""What README.md and docs/TESTING.md show runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import PAGES_AND_TESTS, REPOSITORY, blocks
from tests.support.own_broker import JARS
from tests.testing.test_plugin import RUN_S, run

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.broker

README = blocks("README.md")


def test_every_python_block_of_every_page_is_run_by_a_test() -> None:
    pages = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
    for page in (str(path.relative_to(REPOSITORY)) for path in pages):
        tests = "".join((REPOSITORY / test).read_text() for test in PAGES_AND_TESTS.get(page, []))
        assert [heading for heading in blocks(page) if f'"{heading}"' not in tests] == [], page


@pytest.mark.parametrize("job", ["A job", "A batch function"])
def test_the_tests_that_the_documents_show_pass(
    job: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EOS_LOCAL__JARS", str(JARS))
    code = README.get(job) or blocks("docs/guides/tutorial.md")[job]
    shown = {"shout.py": code, "test_shout.py": README["Test your own job"]}
    if job == "A job":
        shown["test_faults.py"] = blocks("docs/TESTING.md")["A test"]
    for name, code in shown.items():
        pytester.path.joinpath(name).write_text(code)
    run(pytester, "--eos-kafka=process").assert_outcomes(passed=4 if job == "A job" else 1)


def test_the_command_lines_under_the_first_job_run_and_verify_it(tmp_path: Path) -> None:
    lines = blocks("README.md", "console")["A job"].splitlines()
    assert all(line.startswith("$ ") for line in lines)
    (tmp_path / "shout.py").write_text(README["A job"])
    environ = {name: value for name, value in os.environ.items() if not name.startswith("EOS_")}
    environ["EOS_LOCAL__JARS"] = str(JARS)
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    shell = {"cwd": tmp_path, "env": environ, "capture_output": True, "text": True, "timeout": RUN_S}
    try:
        done = subprocess.run(  # type: ignore[call-overload]
            ["bash", "-euc", "\n".join(line.removeprefix("$ ") for line in lines)], check=False, **shell
        )
    finally:
        subprocess.run([sys.executable, "-m", "eos.cli", "local", "stop"], check=True, **shell)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    assert re.search(r"committed +\(none\) +OVER HERE", done.stdout)
    assert re.search(r"shouter: group 'shouter'", done.stdout)
    assert re.search(r"exactly once +yes", done.stdout)


@pytest.mark.slow
def test_the_script_that_the_document_shows_runs(tmp_path: Path) -> None:
    done = _script(blocks("docs/TESTING.md")["Without pytest"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "value=b'psst'" in done.stdout
    assert not (tmp_path / ".eos").exists()


def _script(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=directory,
        env={**os.environ, "EOS_LOCAL__JARS": str(JARS)},
        capture_output=True,
        check=False,
        text=True,
        timeout=RUN_S,
    )

"""What the documents show runs as it stands there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.test_lock import clean_install
from tests.testing.test_plugin import RUN_S, run

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

REPOSITORY = Path(__file__).parents[2]
JARS = os.environ.get("EOS_LOCAL__JARS", str(REPOSITORY / ".eos/jars"))


def test_the_tests_that_the_documents_show_pass(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EOS_LOCAL__JARS", JARS)
    for document in ("README.md", "docs/TESTING.md"):
        for name, code in clean_install().named_files((REPOSITORY / document).read_text()).items():
            pytester.path.joinpath(name).write_text(code)
    run(pytester, "--eos-kafka=process").assert_outcomes(passed=4)


@pytest.mark.slow
def test_the_script_that_the_document_shows_runs(tmp_path: Path) -> None:
    section = (REPOSITORY / "docs/TESTING.md").read_text().partition("## Without pytest\n")[2]
    code = section.partition("```python\n")[2].partition("```")[0]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "EOS_LOCAL__JARS": JARS},
        capture_output=True,
        check=False,
        text=True,
        timeout=RUN_S,
    )
    assert done.returncode == 0, done.stderr
    assert "value=b'psst'" in done.stdout
    assert not (tmp_path / ".eos").exists()

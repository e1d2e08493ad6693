"""What README.md and docs/TESTING.md show runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eos.exits import ExitCode
from eos.testing import KafkaCluster
from tests.support.documents import PAGES_AND_TESTS, REPOSITORY, blocks
from tests.support.observer import committed_offsets, read_committed, watermarks
from tests.support.processes import running
from tests.testing.test_plugin import RUN_S, run

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

JARS = os.environ.get("EOS_LOCAL__JARS", str(REPOSITORY / ".eos/jars"))
WAIT_S = 60
README = blocks("README.md")


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    """One of its own: the pages' topics have plain names."""
    with KafkaCluster(kind="process", jars=Path(JARS)) as started:
        for topic in ("payments", "ledger", "audit"):
            started.create_topic(topic, partitions=2)
        yield started


def test_every_python_block_of_every_page_is_run_by_a_test() -> None:
    pages = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
    for page in (str(path.relative_to(REPOSITORY)) for path in pages):
        tests = "".join((REPOSITORY / test).read_text() for test in PAGES_AND_TESTS.get(page, []))
        assert [heading for heading in blocks(page) if f'"{heading}"' not in tests] == [], page


@pytest.mark.parametrize("job", ["A job", "A job (2)"])
def test_the_tests_that_the_documents_show_pass(
    job: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EOS_LOCAL__JARS", JARS)
    shown = {"shout.py": README[job], "test_shout.py": README["Test your own job"]}
    if job == "A job":
        shown["test_accidents.py"] = blocks("docs/TESTING.md")["A test"]
    for name, code in shown.items():
        pytester.path.joinpath(name).write_text(code)
    run(pytester, "--eos-kafka=process").assert_outcomes(passed=4 if job == "A job" else 1)


def test_the_job_that_eos_init_writes_passes_its_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EOS_LOCAL__JARS", JARS)
    pytester.run(sys.executable, "-m", "eos.cli", "init", "orders")
    run(pytester, "--eos-kafka=process").assert_outcomes(passed=1)
    again = pytester.run(sys.executable, "-m", "eos.cli", "init", "orders")
    assert again.ret == ExitCode.CONFIGURATION
    again.stderr.fnmatch_lines("*orders.py, orders.toml, test_orders.py: there already*")


def test_the_command_lines_under_the_first_job_run_and_verify_it(tmp_path: Path) -> None:
    lines = blocks("README.md", "console")["A job"].splitlines()
    assert all(line.startswith("$ ") for line in lines)
    (tmp_path / "shout.py").write_text(README["A job"])
    (tmp_path / ".venv").symlink_to(sys.prefix)  # as in a clone after `make`
    environ = {name: value for name, value in os.environ.items() if not name.startswith("EOS_")}
    environ["EOS_LOCAL__JARS"] = JARS
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


def test_the_loop_of_one_s_own_carries_each_record_over_once(cluster: KafkaCluster) -> None:
    servers = cluster.bootstrap_servers
    cluster.produce("payments", [b"payment %d" % number for number in range(500)])
    payments = sorted(record.value or b"" for record in read_committed(servers, "payments"))
    with running(README["A loop of your own"], env={"EOS_KAFKA__BOOTSTRAP_SERVERS": servers}) as loop:
        deadline = time.monotonic() + WAIT_S
        while len(found := read_committed(servers, "ledger")) < len(payments):
            assert loop.alive
            assert time.monotonic() < deadline
        loop.terminate()
        loop.wait(WAIT_S)
    assert sorted(record.value or b"" for record in found) == payments
    committed = committed_offsets(servers, "relay", [("payments", 0), ("payments", 1)])
    # Markers of the other test's transactions count as offsets.
    ends = sum(end for _, end in watermarks(servers, "payments").values())
    assert len(payments) <= sum(offset or 0 for offset, _ in committed.values()) <= ends


def test_output_without_input_is_there_whole(cluster: KafkaCluster, tmp_path: Path) -> None:
    done = _script(README["A loop of your own (2)"], tmp_path, cluster)
    assert done.returncode == 0, done.stderr
    assert [record.value for record in read_committed(cluster.bootstrap_servers, "audit")] == [b"paid"]


@pytest.mark.slow
def test_the_script_that_the_document_shows_runs(tmp_path: Path) -> None:
    done = _script(blocks("docs/TESTING.md")["Without pytest"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "value=b'psst'" in done.stdout
    assert not (tmp_path / ".eos").exists()


def _script(
    code: str, directory: Path, cluster: KafkaCluster | None = None
) -> subprocess.CompletedProcess[str]:
    servers = {"EOS_KAFKA__BOOTSTRAP_SERVERS": cluster.bootstrap_servers} if cluster else {}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=directory,
        env={**os.environ, "EOS_LOCAL__JARS": JARS, **servers},
        capture_output=True,
        check=False,
        text=True,
        timeout=RUN_S,
    )

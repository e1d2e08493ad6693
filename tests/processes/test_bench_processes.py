"""Contenders of the benchmark as processes, and the plot of what they did."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.contender import Arguments, Report
from bench.contenders import Contender
from bench.plot import plot
from bench.process import running, wait
from tests.support.bench_outcomes import outcome
from tests.support.patience import PATIENCE_S

ARGUMENTS = Arguments("here:9092", "in", "out", "group", 100, until_caught_up=True)
REPORT = Report(seconds=1.0, startup_cpu_seconds=0.0, peak_rss_bytes=0, commits=1, commit_seconds=None)


def test_the_cpu_of_a_contender_is_seen_from_outside() -> None:
    burn = f"import time\nwhile time.process_time() < 0.5: pass\nprint('''{json.dumps(vars(REPORT))}''')"
    contender = Contender("burner", "", "", launch=(sys.executable, "-c", burn))
    subprocess.run([sys.executable, "-c", "pass"], check=True)  # of another child
    with running(contender, ARGUMENTS) as process:
        process.wait(PATIENCE_S)
    assert process.report == REPORT
    assert 0.5 <= process.cpu_seconds < 5


def test_a_contender_that_fails_says_its_last_words() -> None:
    contender = Contender("failing", "", "", launch=(sys.executable, "-c", "raise SystemExit('no broker')"))
    with (
        pytest.raises(RuntimeError, match="failing ended with 1:\nno broker"),
        running(contender, ARGUMENTS) as process,
    ):
        process.wait(PATIENCE_S)


def test_a_process_that_does_not_end_in_time_is_ended_and_one_that_does_gives_its_code() -> None:
    with (
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], text=True) as slow,
        pytest.raises(subprocess.TimeoutExpired),
    ):
        wait(slow, 0.5)
    assert slow.returncode == -signal.SIGKILL
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"], text=True) as quick:
        assert wait(quick, PATIENCE_S) == 3


def test_the_plot_is_drawn_beside_the_figures(tmp_path: Path) -> None:
    plot([outcome(), outcome(number=2), outcome("quix")], tmp_path / "peers.json")
    assert (tmp_path / "peers.svg").read_text().count("<svg") == 1

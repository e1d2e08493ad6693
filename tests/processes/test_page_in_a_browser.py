"""The job's page as a browser shows it: under its own policy, with what came from outside as text."""

from __future__ import annotations

import html
import multiprocessing
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eos.events import (
    Event,
    Lag,
    RecordDeadLettered,
    Sampled,
    SessionOpened,
    TransactionCommitted,
    TransactionEnded,
    TransformAtWork,
)
from eos.offsets import OffsetVector, Partition
from eos.ops.observe import Aggregator, Reporter, Server, serve
from eos.ops.observe.worker_report import packed
from eos.settings.tables import ObserveSettings
from tests.support.patience import PATIENCE_S

SHARD = "refunds.refunds.i.0"
IN = Partition("settlements", 3)
MARKUP = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "chromium-headless-shell")
_BROWSER = next(filter(None, map(shutil.which, _BROWSERS)), None)

pytestmark = pytest.mark.skipif(
    _BROWSER is None, reason=f"no browser here: none of {', '.join(_BROWSERS)} is on the PATH"
)


@pytest.fixture
def aggregator() -> Aggregator:
    return Aggregator(
        [0, 1], about={"job": "jobs.refunds:job", "app": f"refunds {MARKUP}", "group": "refunds"}
    )


@pytest.fixture
def server(aggregator: Aggregator) -> Iterator[Server]:
    running = serve(aggregator, ObserveSettings(http_port=0))
    assert running is not None
    with running:
        yield running


@pytest.fixture
def report(aggregator: Aggregator) -> Iterator[Callable[..., None]]:
    """Sends events as worker 0, and as worker 1 an open session."""
    _, sender = multiprocessing.Pipe(duplex=False)
    reporter = Reporter(sender, 0, interval_s=3600)

    def send(*events: Event) -> None:
        for event in events:
            reporter(event)
        aggregator.take(0, packed(reporter.report()))

    yield send
    reporter.close()


class Shown:
    """What a browser made of a page: its document after two seconds, and what it complained of."""

    def __init__(self, url: str, profile: Path) -> None:
        assert _BROWSER is not None
        as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
        ended = subprocess.run(
            [
                _BROWSER,
                "--headless",
                *as_root,
                "--disable-gpu",
                "--no-first-run",
                f"--user-data-dir={profile}",
                "--enable-logging=stderr",
                "--virtual-time-budget=3000",
                "--dump-dom",
                url,
            ],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        self.markup = re.sub(r"<script>.*?</script>", "", ended.stdout, flags=re.DOTALL)
        self.text = " ".join(
            html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", self.markup, flags=re.DOTALL)).split()
        )
        self.complaints = [line for line in ended.stderr.splitlines() if "CONSOLE" in line]
        [self.title] = re.findall(r"<title>(.*?)</title>", self.markup)


def test_a_stuck_worker_is_what_a_reader_sees_first(
    server: Server, report: Callable[..., None], tmp_path: Path
) -> None:
    report(
        SessionOpened(SHARD, 0.1),
        TransactionCommitted(SHARD, 10, 12, OffsetVector({IN: 1_234_567}), 0.1, 0.02),
        Sampled(SHARD, lag=Lag({IN: 4321}, {IN: 0})),
        RecordDeadLettered(SHARD, IN, 99, "ValueError: the value of a record"),
        TransformAtWork(SHARD, "settlements[3] offset 1234570", 34.0, ("/app/jobs/fx.py:112 in rate_of",)),
    )
    shown = Shown(server.url, tmp_path)
    assert shown.complaints == []
    assert "2 problems" in shown.text
    assert shown.title.startswith("✕ 2 problems")
    verdict, _, tables = shown.text.partition("Workers Worker")
    assert "Worker 0 is stuck: its transform has been at settlements[3] offset 1234570 for" in verdict
    assert "/app/jobs/fx.py:112 in rate_of" in verdict
    assert re.search(r"0 stuck \d+ 0", tables)
    assert re.search(r"settlements\[3\] 4,321 0 0 1234567 [\d.]+ s ago", tables)
    assert re.search(r"settlements\[3\] 99 ValueError dead-lettered", tables)
    assert "the value of a record" not in shown.markup
    assert shown.markup.count("<figure") == 4


def test_what_came_from_outside_is_text_and_no_markup(
    server: Server, report: Callable[..., None], tmp_path: Path
) -> None:
    topic = Partition(MARKUP, 0)
    report(
        SessionOpened(SHARD, 0.1),
        TransactionCommitted(SHARD, 1, 1, OffsetVector({topic: 5}), 0.1, 0.02),
        TransactionEnded(SHARD, "aborted", f"AbortableError: {MARKUP}", 0.1),
        RecordDeadLettered(SHARD, topic, 99, f"{MARKUP}: x"),
        TransformAtWork(SHARD, MARKUP, 34.0, (MARKUP,)),
    )
    shown = Shown(server.url, tmp_path)
    assert shown.complaints == []
    assert "taken" not in shown.title or html.unescape(shown.title).endswith(MARKUP)
    assert "<img" not in shown.markup
    assert shown.text.count("<img src=x onerror=document.title='taken'>") >= 5


def test_a_job_that_does_not_answer_is_no_job_that_is_well(
    server: Server, aggregator: Aggregator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(aggregator, "status", lambda: 1 / 0)
    shown = Shown(server.url, tmp_path)
    assert "no answer" in shown.text
    assert "The job does not answer." in shown.text
    assert "see 'Exit codes' in docs/RUNBOOK.md" in shown.text


def test_a_job_that_is_well_says_so(
    server: Server, aggregator: Aggregator, report: Callable[..., None], tmp_path: Path
) -> None:
    aggregator.done(1)
    report(SessionOpened(SHARD, 0.1), TransactionCommitted(SHARD, 1, 1, OffsetVector({IN: 5}), 0.1, 0.02))
    shown = Shown(server.url, tmp_path)
    assert "all well" in shown.text
    assert shown.title.startswith("✓ all well")

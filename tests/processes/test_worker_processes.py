"""Processes that are started before there is a plan, or a worker, for them."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eos.cli.worker_listener import listen, prepare
from eos.exits import ExitCode
from eos.runner.messages import Plan, Unfit
from eos.runner.processes import (
    _STANDING_BY,
    WorkerProcess,
    end_all,
    prepare_all,
    standing_by,
    started_early,
)
from eos.runner.supervisor import run_workers
from tests.support.patience import PATIENCE_S
from tests.support.settings import settings_of


@pytest.fixture
def processes() -> Iterator[list[WorkerProcess]]:
    started: list[WorkerProcess] = []
    yield started
    end_all(started)


def plan_of(job: str, app_dir: Path, workers: int = 1, grace_ms: int = 5_000) -> Plan:
    settings = settings_of("127.0.0.1:1", workers__count=workers, shutdown__grace_ms=grace_ms)
    return Plan(job, app_dir, settings, False, listen, prepare)


def test_one_that_got_no_plan_is_gone_with_its_block() -> None:
    """As where a setting is wrong: the command ends as soon as it has said so."""
    with started_early() as early:
        (process,) = early
        assert process.process.is_alive()
    assert process.process.exitcode == -signal.SIGKILL


def test_one_whose_parent_is_gone_before_it_had_a_plan_ends_by_itself(processes: list[WorkerProcess]) -> None:
    one = WorkerProcess()
    processes.append(one)
    one.lifeline.close()
    one.process.join(PATIENCE_S)
    assert one.process.exitcode == 0


def test_the_plan_reaches_those_that_wait_and_what_is_missing_is_added(
    processes: list[WorkerProcess], tmp_path: Path
) -> None:
    processes.append(WorkerProcess())
    prepare_all(processes, plan_of("no.such.module:job", tmp_path, workers=2))
    assert len(processes) == 2
    deadline = time.monotonic() + PATIENCE_S
    for one in processes:
        messages: list[object] = []
        while not messages:
            assert time.monotonic() < deadline, "it has not tried the import of the plan's job"
            messages = list(one.messages())
            time.sleep(0.05)
        (unfit,) = messages
        assert isinstance(unfit, Unfit)
        assert "no.such.module" in unfit.reason


def test_ctrl_c_that_comes_while_the_line_about_it_is_written_ends_the_stop(tmp_path: Path) -> None:
    at_work = tmp_path / "at-work"
    (tmp_path / "slow_job.py").write_text(
        f"import pathlib, time\npathlib.Path({str(at_work)!r}).touch()\ntime.sleep({2 * PATIENCE_S})\n"
    )
    main_thread, stopping = threading.get_ident(), list[float]()

    def press() -> None:
        signal.pthread_kill(main_thread, signal.SIGINT)

    class Pressing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "or by Ctrl-C once more" in record.getMessage():
                stopping.append(time.monotonic())
                press()

    def press_once_at_work() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not at_work.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        press()

    handler, presser = Pressing(), threading.Thread(target=press_once_at_work)
    log = logging.getLogger("eos.runner.supervisor")
    log.addHandler(handler)
    try:
        presser.start()
        code = run_workers(
            plan_of("slow_job:job", tmp_path, grace_ms=60_000),
            on_report=lambda *_: None,
            on_restart=lambda _: None,
        )
    finally:
        log.removeHandler(handler)
        presser.join(PATIENCE_S)
    assert code is ExitCode.UNEXPECTED
    assert stopping
    assert time.monotonic() - stopping[0] < 30, "its whole grace period was waited for"


def test_one_that_stands_by_is_the_one_that_is_started_early() -> None:
    """`eos run` starts it before its command line is loaded."""
    with standing_by():
        with started_early() as early:
            (process,) = early
            assert process.process.is_alive()
        assert process.process.exitcode == -signal.SIGKILL
        with started_early() as more:
            assert more[0] is not process


def test_one_that_stands_by_for_nothing_is_gone_with_its_block() -> None:
    """As where the command line is wrong."""
    with standing_by():
        (process,) = _STANDING_BY
    assert process.process.exitcode == -signal.SIGKILL
    assert not _STANDING_BY

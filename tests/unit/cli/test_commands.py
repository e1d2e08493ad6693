"""`eos run`, `verify` and `local`: what they ask the library for, and what they make of its answer."""

from __future__ import annotations

import pickle
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from eos.base.commands import Started, started_with
from eos.base.deadline import Deadline
from eos.cli.transactions import _advice
from eos.exits import ExitCode
from eos.job import Job
from eos.offsets import Partition
from eos.ops.check.held_back import HeldBack
from eos.ops.check.transactions import TransactionDescription
from eos.ops.verifier.report import Difference, Example, InputCount, OutputCount, VerificationReport
from eos.runner.messages import Ending, Plan
from eos.runner.processes import WorkerProcess
from eos.runner.supervisor import Restarted
from eos.settings import Settings
from tests.support.command_line import Eos

_JOB = "tests.support.jobs_for_tests:copying"
_LIMITED = "tests.support.jobs_for_tests:limited"
_REPOSITORY = Path(__file__).parents[3]
_APP_DIR = ("--app-dir", str(_REPOSITORY))


class _Supervisor:
    """Stands for ``run_workers``: keeps its plan, plays what workers report, and ends with a code."""

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.waiting: list[WorkerProcess] = []
        self.code = ExitCode.DONE
        self.reports: list[tuple[int, object]] = []
        self.stopped_after: int | None = None  # so many workers were done

    def run_workers(
        self,
        plan: Plan,
        *,
        on_report: Callable[[int, object], None],
        on_restart: Callable[[Restarted], None],
        on_done: Callable[[int, Ending], None],
        waiting: list[WorkerProcess],
    ) -> ExitCode:
        assert waiting is self.waiting
        self.plan = plan
        for ordinal, report in self.reports:
            on_report(ordinal, report)
        on_restart(Restarted(plan.settings.ordinal, 9))
        for index in range(plan.settings.workers.count)[: self.stopped_after]:
            on_done(plan.settings.for_worker(index).ordinal, Ending(ExitCode.DONE))
        return self.code


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> _Supervisor:
    """No broker is asked, and this process keeps its logs."""

    def preflight(
        job: Job, settings: Settings, *, timeout_s: float, one_machine: bool, create: str
    ) -> list[str]:
        assert not one_machine
        assert create == ""
        assert timeout_s == 30
        return [f"{job.name} has one replica"]

    standing_in = _Supervisor()
    monkeypatch.setattr("eos.runner.supervisor.run_workers", standing_in.run_workers)
    monkeypatch.setattr("eos.runner.processes.started_early", lambda: nullcontext(standing_in.waiting))
    monkeypatch.setattr("eos.runner.processes.prepare_all", lambda *_: None)
    monkeypatch.setattr("eos.ops.check.preflight.preflight", preflight)
    monkeypatch.setattr("eos.ops.observe.configure_logs", lambda _: None)
    return standing_in


def test_run_plans_what_its_options_say(eos: Eos, supervisor: _Supervisor) -> None:
    ended = eos(
        "run", _JOB, *_APP_DIR, "--workers", "2", "--start", "earliest", "--until-caught-up", "--adopt-offsets",
        "--set", "transaction.interval_ms=50",
    )  # fmt: skip
    assert ended.code == ExitCode.DONE
    plan = supervisor.plan
    assert plan is not None
    assert (plan.job, plan.app_dir, plan.until_caught_up) == (_JOB, _REPOSITORY, True)
    settings = plan.settings
    assert settings.workers.count == 2
    assert settings.input.start == "earliest"
    assert settings.ownership.adopt_offsets
    assert settings.transaction.interval_ms == 50
    assert pickle.loads(pickle.dumps(plan)).listener is plan.listener  # noqa: S301 - workers are spawned


def test_run_leaves_to_the_settings_what_no_option_says(
    eos: Eos, supervisor: _Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EOS_WORKERS__COUNT", "3")
    assert eos("run", _JOB, *_APP_DIR).code == ExitCode.DONE
    assert supervisor.plan is not None
    assert supervisor.plan.settings.workers.count == 3
    assert supervisor.plan.settings.input.start == "fail"
    assert not supervisor.plan.until_caught_up


@pytest.mark.parametrize("code", [code for code in ExitCode if code is not ExitCode.DONE])
def test_run_exits_with_the_workers_code_and_says_so(
    eos: Eos, supervisor: _Supervisor, code: ExitCode
) -> None:
    supervisor.code = code
    ended = eos("run", _JOB, *_APP_DIR)
    assert ended.code == code
    assert f"exit code {int(code)} ({code.name.lower().replace('_', ' ')})" in ended.err


@pytest.mark.parametrize("done", [0, 1])
def test_run_until_caught_up_that_is_stopped_before_does_not_end_as_done(
    eos: Eos, supervisor: _Supervisor, done: int
) -> None:
    """0 is what a script or a Kubernetes Job goes on after."""
    supervisor.stopped_after = done
    ended = eos("run", _JOB, *_APP_DIR, "--workers", "2", "--until-caught-up")
    assert ended.code == 143
    assert "was asked to stop before it had caught up" in ended.err
    assert eos("run", _JOB, *_APP_DIR, "--workers", "2").code == ExitCode.DONE


def test_run_logs_the_warnings_of_the_preflight(
    eos: Eos, supervisor: _Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    eos("run", _JOB, *_APP_DIR)
    assert "preflight: copying has one replica" in caplog.messages


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["tests.support.module_that_exits:job"], "calls sys.exit(0) when it is imported"),
        ([_LIMITED], "job.most"),
        ([_LIMITED, "--set", "job.most=many"], "job.most"),
        ([_JOB, "--set", "job.most=3"], "most"),
        (["tests.support.nowhere:job"], "tests.support.nowhere"),
        ([_JOB, "--workers", "0"], "workers.count"),
    ],
)
def test_run_starts_no_worker_for_a_wrong_job_or_setting(
    eos: Eos, supervisor: _Supervisor, arguments: list[str], named: str
) -> None:
    ended = eos("run", *arguments, *_APP_DIR)
    assert ended.code == ExitCode.CONFIGURATION
    assert named in ended.err
    assert supervisor.plan is None


def test_run_takes_the_jobs_own_settings(eos: Eos, supervisor: _Supervisor) -> None:
    assert eos("run", _LIMITED, *_APP_DIR, "--set", "job.most=3").code == ExitCode.DONE


def test_debug_of_run_is_the_log_level_of_the_parent_and_its_workers(
    eos: Eos, supervisor: _Supervisor
) -> None:
    assert eos("run", _JOB, *_APP_DIR, "--debug").code == ExitCode.DONE
    assert supervisor.plan is not None
    assert supervisor.plan.settings.observe.log_level == "debug"
    ended = eos("run", "tests.support.nowhere:job", *_APP_DIR, "--debug")
    assert ended.code == ExitCode.CONFIGURATION
    assert "Traceback (most recent call last)" in ended.err
    assert "Traceback" not in eos("run", "tests.support.nowhere:job", *_APP_DIR).err


_INPUT = Partition("t", 0)
_EXACT = VerificationReport("g", (InputCount(_INPUT, 0, 10, 10),), (OutputCount("o", 10, 10),))
_LOST = VerificationReport(
    "g",
    (InputCount(_INPUT, 0, 10, 10),),
    (OutputCount("o", 10, 9, Counter({Difference.LOST: 1})),),
    examples=(
        Example(Difference.LOST, _INPUT, 4, "its output in o was not found, " + "and it was looked for " * 5),
    ),
)
_NOTHING = VerificationReport("g", (InputCount(_INPUT, 0, None, 0),), ())


_HELD_BACK = replace(_EXACT, held_back=(HeldBack(_INPUT, 10, 110, "by the open transaction of 'another'"),))
_WAITING = replace(_EXACT, inputs=(InputCount(_INPUT, 0, 10, 10, waiting=7),))


def _verify_gives(report: VerificationReport, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    calls: list[dict[str, object]] = []

    def verify(job: Job, settings: Settings, **options: object) -> VerificationReport:
        calls.append(options)
        return report

    monkeypatch.setattr("eos.ops.verifier.verify.verify", verify)
    monkeypatch.setattr("eos.ops.check.reach.await_brokers", lambda _: ())
    return calls


def test_verify_of_an_exact_output_is_done(eos: Eos, monkeypatch: pytest.MonkeyPatch) -> None:
    _verify_gives(_EXACT, monkeypatch)
    ended = eos("verify", _JOB, *_APP_DIR)
    assert (ended.code, ended.err) == (ExitCode.DONE, "")
    assert ended.out.split()[-1] == "yes"


def test_verify_whose_transform_exits_gives_no_verdict(eos: Eos, monkeypatch: pytest.MonkeyPatch) -> None:
    _verify_gives(_EXACT, monkeypatch)
    monkeypatch.setattr("eos.ops.verifier.verify.verify", lambda *_, **__: sys.exit(0))
    ended = eos("verify", _JOB, *_APP_DIR)
    assert ended.code == ExitCode.UNEXPECTED
    assert "called sys.exit(0)" in ended.err


def test_verify_of_a_damaged_output_has_its_own_code_and_shows_where(
    eos: Eos, monkeypatch: pytest.MonkeyPatch
) -> None:
    _verify_gives(_LOST, monkeypatch)
    ended = eos("verify", _JOB, *_APP_DIR)
    assert ended.code == ExitCode.NOT_EXACTLY_ONCE
    assert str(_LOST.examples[0]) in ended.out.splitlines()  # whole, however wide


def test_verify_of_a_group_that_has_processed_nothing_is_not_exactly_once(
    eos: Eos, monkeypatch: pytest.MonkeyPatch
) -> None:
    _verify_gives(_NOTHING, monkeypatch)
    ended = eos("verify", _JOB, *_APP_DIR)
    assert ended.code == ExitCode.NOT_EXACTLY_ONCE
    assert "exactly once not shown: the group has processed no record" in " ".join(ended.out.split())
    assert "the group 'g' has processed no record" in ended.err


def test_verify_of_a_group_that_has_passed_aborted_records_alone_is_not_told_to_run_the_job(
    eos: Eos, monkeypatch: pytest.MonkeyPatch
) -> None:
    _verify_gives(replace(_NOTHING, inputs=(InputCount(_INPUT, 0, 2, 0),)), monkeypatch)
    ended = eos("verify", _JOB, *_APP_DIR)
    assert ended.code == ExitCode.NOT_EXACTLY_ONCE
    assert "the group 'g' has passed 2 offsets, and no committed record is left among them" in ended.err
    assert "run the job" not in ended.err


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (
            _HELD_BACK,
            "held back 100 offsets of t[0], from the LSO 10 to the high watermark 110, are held back by the open transaction",
        ),
        (_WAITING, "not processed 7 offsets of t[0] after the committed one"),
    ],
)
def test_verify_of_input_that_is_not_processed_says_so_and_fails_where_all_is_asked_for(
    eos: Eos, monkeypatch: pytest.MonkeyPatch, report: VerificationReport, said: str
) -> None:
    _verify_gives(report, monkeypatch)
    ended = eos("verify", _JOB, *_APP_DIR)
    shown = " ".join(ended.out.split())
    assert ended.code == ExitCode.DONE
    assert said in shown
    assert shown.endswith("for what is committed, yes; but not all of the input is processed")
    ended = eos("verify", _JOB, *_APP_DIR, "--complete")
    assert (ended.code, "not all of the input is processed" in ended.err) == (ExitCode.UNAVAILABLE, True)


def test_verify_of_all_of_the_input_is_complete(eos: Eos, monkeypatch: pytest.MonkeyPatch) -> None:
    _verify_gives(_EXACT, monkeypatch)
    assert eos("verify", _JOB, *_APP_DIR, "--complete").code == ExitCode.DONE


def test_verify_of_a_damaged_output_that_is_not_complete_is_damaged(
    eos: Eos, monkeypatch: pytest.MonkeyPatch
) -> None:
    _verify_gives(replace(_LOST, held_back=_HELD_BACK.held_back), monkeypatch)
    assert eos("verify", _JOB, *_APP_DIR, "--complete").code == ExitCode.NOT_EXACTLY_ONCE


def test_verify_is_told_of_grown_topics_and_of_the_order(eos: Eos, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _verify_gives(_EXACT, monkeypatch)
    eos("verify", _JOB, *_APP_DIR)
    eos("verify", _JOB, *_APP_DIR, "--grown-from", "o=4", "--grown-from", "o.dlq=1", "--no-order")
    eos("verify", _JOB, *_APP_DIR, "--order")
    assert [(call["grown_from"], call["order"]) for call in calls] == [
        ({}, None),
        ({"o": 4, "o.dlq": 1}, False),
        ({}, True),
    ]
    eos("verify", _JOB, *_APP_DIR, "--grown-from", "o=2", "--grown-from", "o=4")  # given more twice
    assert calls[-1]["grown_from"] == {"o": 2}
    ended = eos("verify", _JOB, *_APP_DIR, "--grown-from", "o:4")
    assert (ended.code, "TOPIC=PARTITIONS" in ended.err) == (ExitCode.CONFIGURATION, True)


def test_verify_begins_where_it_is_told(eos: Eos, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _verify_gives(_EXACT, monkeypatch)
    eos("verify", _JOB, *_APP_DIR, "--input-from", "a.b:1=5", "--output-from", "o:0=7", "--timeout", "9")
    (options,) = calls
    assert options["input_from"] == {Partition("a.b", 1): 5}
    assert options["output_from"] == {Partition("o", 0): 7}
    assert options["timeout_s"] == 9
    assert eos("verify", _JOB, *_APP_DIR, "--input-from", "a.b=5").code == ExitCode.CONFIGURATION


@pytest.mark.parametrize(
    "words",
    [
        ("verify", _JOB),
        ("status", _JOB),
        ("show", "topic"),
        ("offsets", "show", _JOB),
        ("offsets", "set", _JOB, "--to", "latest"),
        ("skip", _JOB, "topic:0@1", "--reason", "x"),
        ("transactions", "list", _JOB),
        ("transactions", "explain", "id"),
        ("transactions", "end", "id"),
        ("transactions", "abort", "--topic", "t", "--partition", "0", "--offset", "0"),
    ],
    ids=lambda words: "-".join(words[:2] if words[0] in ("offsets", "transactions") else words[:1]),
)
def test_a_command_that_no_broker_answers_says_soon_at_which_address(
    eos: Eos, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr("eos.ops.check.reach.Deadline", lambda _: Deadline(0.2))
    away = ("--set", "kafka.bootstrap_servers=127.0.0.1:9")
    ended = eos(*words, *away, *(_APP_DIR if _JOB in words else ()))
    assert ended.code == ExitCode.UNAVAILABLE
    assert "Kafka does not answer at 127.0.0.1:9 (kafka.bootstrap_servers)" in ended.err


def test_the_open_transaction_of_another_program_is_explained_with_the_line_that_ends_it() -> None:
    started_ms = int(time.time() * 1000)
    one = TransactionDescription("billing", "Ongoing", 7, 0, 60_000, started_ms, frozenset(), 1)
    started_with(Started(options=("--config", "x.toml")))
    said = _advice(one, None, has_members=False)
    assert said.endswith(
        "At once, and its program with it: eos transactions end billing --config x.toml (with --fence-owner)"
    )


@pytest.mark.parametrize("name", ["eos", "json", "pytest"])
def test_a_new_job_does_not_hide_a_module_that_there_is(eos: Eos, tmp_path: Path, name: str) -> None:
    ended = eos("init", name, "--app-dir", str(tmp_path))
    assert ended.code == ExitCode.CONFIGURATION
    assert "another name" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_a_new_job_makes_its_folder_and_says_what_comes_next(eos: Eos, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "orders"
    ended = eos("init", "orders", "--app-dir", str(folder))
    assert ended.code == ExitCode.DONE, ended.err
    assert {file.name for file in folder.iterdir()} == {
        "README.md",
        "orders.py",
        "orders.toml",
        "test_orders.py",
    }
    assert f"  cd {folder}\n  eos local start\n" in ended.out
    assert "  eos run orders:job --config orders.toml --local --start earliest" in ended.out


def test_a_new_job_leaves_a_readme_that_is_there(eos: Eos, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    ended = eos("init", "orders", "--app-dir", str(tmp_path))
    assert ended.code == ExitCode.CONFIGURATION
    assert (
        f"README.md: there already. Fix: another folder, for example --app-dir {tmp_path}/orders" in ended.err
    )
    assert [file.read_text() for file in tmp_path.iterdir()] == ["mine"]


def test_a_local_kafka_that_does_not_run_is_unavailable(eos: Eos, tmp_path: Path) -> None:
    ended = eos("local", "status", "--directory", str(tmp_path))
    assert (ended.code, ended.out) == (ExitCode.UNAVAILABLE, "")
    assert str(tmp_path) in ended.err


def test_topics_are_created_nowhere_else_than_on_a_local_kafka(eos: Eos, tmp_path: Path) -> None:
    for words in (("topics", _JOB, *_APP_DIR), ("produce", "t", "x"), ("status",)):
        ended = eos("local", *words, "--directory", str(tmp_path))
        assert ended.code == ExitCode.UNAVAILABLE  # it may be started, and then the same command is right
        assert "eos local start" in ended.err


def test_stopping_what_does_not_run_is_done(eos: Eos, tmp_path: Path) -> None:
    assert eos("local", "stop", "--directory", str(tmp_path)).code == ExitCode.DONE


def test_a_local_kafka_has_one_broker_or_three(eos: Eos, tmp_path: Path) -> None:
    ended = eos("local", "start", "--brokers", "2", "--directory", str(tmp_path))
    assert ended.code == ExitCode.CONFIGURATION
    assert "local.brokers" in ended.err
    assert list(tmp_path.iterdir()) == []

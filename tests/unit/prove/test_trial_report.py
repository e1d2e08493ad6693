"""The line that replays a trial has all that it was given."""

from __future__ import annotations

import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from eos.cli.app import app
from eos.exits import ExitCode
from eos.job import Job
from eos.prove.compared import Compared
from eos.prove.faults import Fault, FaultKind
from eos.prove.history import History
from eos.prove.judge import Verdict
from eos.prove.nemesis import Injected
from eos.prove.trial import Proof, Trial
from eos.prove.trial_options import TrialOptions
from eos.prove.trial_report import code_of, figures, rows, verdict_of, write_report
from eos.testing.proxy import Edge
from tests.support.settings import settings_of

JOB = Job(name="relay", inputs=["in"], outputs=["out"], transform=lambda _: [])


def a_trial(tmp_path: Path) -> Trial:
    return Trial(
        reference="relay:job",
        job=JOB.identity(settings_of()),
        app_dir=tmp_path,
        options=["--set", "group=a b"],
        seed=7,
        faults=3,
        minutes=None,
        kinds=[FaultKind.KILL, FaultKind.DROP, FaultKind.BROKER],
        brokers=1,
        partitions=4,
        rate=500,
        directory=tmp_path,
        command='python loop.py "$EOS_GROUP"',
        source="feeds:some",
        ways={FaultKind.BROKER: ["killed", "paused"], FaultKind.DROP: ["answer lost"]},
        quiet=0.25,
        each=True,
    )


def test_the_replay_line_is_one_that_a_shell_reads_as_it_was_meant(tmp_path: Path) -> None:
    proof = Proof(a_trial(tmp_path), 0.0, 1.0, [], [], History(), 0, Verdict(None, ()))
    words = shlex.split(proof.trial.again)
    assert words[:3] == ["eos", "prove", "relay:job"]
    words.remove("--each")
    options = dict(zip(words[3::2], words[4::2], strict=True))
    assert options["--run"] == 'python loop.py "$EOS_GROUP"'
    assert (options["--set"], options["--input"], options["--seed"]) == ("group=a b", "feeds:some", "7")
    assert options["--app-dir"] == str(tmp_path)
    assert options["--only"] == "drop/answer lost,broker/killed,broker/paused,kill"
    assert (options["--faults"], options["--quiet"]) == ("3", "0.25")
    assert "--seed 0 " in replace(a_trial(tmp_path), seed=0).again
    proof = Proof(
        replace(a_trial(tmp_path), no_order=True), 0.0, 1.0, [], [], History(), 0, Verdict(None, ())
    )
    assert "--no-order" in shlex.split(proof.trial.again)


def test_the_command_line_reads_in_the_line_what_the_trial_was_asked_for(tmp_path: Path) -> None:
    """Each option has another value than by itself."""
    asked = replace(
        a_trial(tmp_path),
        seed=0,
        rate=7,
        partitions=3,
        brokers=3,
        minutes=0.5,
        copied=9,
        no_order=True,
        topics=["a=in", "b"],
        master="local[2]",
        conf=["a=b c"],
        judge="copies:job",
        partitioner="consistent_random",
    )
    prove: Any = get_command(app)
    prove = prove.get_command(None, "prove")
    given = prove.make_context("prove", shlex.split(asked.again)[2:]).params
    for field in fields(TrialOptions):
        value = getattr(asked, field.name)
        assert value != field.default or field.name == "only"
        read = given[field.name]
        assert (list(read) if isinstance(read, tuple) else read) == value or field.name == "only"
    assert given["only"] == "drop/answer lost,broker/killed,broker/paused,kill"


def injected(kind: FaultKind, *, happened: bool) -> Injected:
    fault = Fault(1, kind, 1.0, 0.0, 0.5, None, Edge.REPLY, "")
    return Injected(fault, 0.0, 1.0, happened, "no transaction began")


@pytest.mark.parametrize(
    ("tried", "said"),
    [
        ([(FaultKind.KILL, True)] * 3, "exactly once"),
        ([(FaultKind.KILL, False), *[(FaultKind.KILL, True)] * 3], "exactly once"),
        ([(FaultKind.KILL, True)] * 2, "not shown: 2 of 3 faults happened"),
        (
            [*[(FaultKind.KILL, True)] * 3, (FaultKind.DROP, False), (FaultKind.DROP, False)],
            "not shown: drop did not happen in 2 tries (drop: no transaction began)",
        ),
    ],
)
def test_what_did_not_happen_is_the_verdict_and_no_footnote(
    tmp_path: Path, tried: list[tuple[FaultKind, bool]], said: str
) -> None:
    faults = [injected(kind, happened=happened) for kind, happened in tried]
    proof = Proof(a_trial(tmp_path), 0.0, 1.0, faults, [], History(), 0, Verdict(None, ()))
    shown = said == "exactly once"
    assert (verdict_of(proof), proof.exactly_once) == (said, shown)
    assert dict(rows(proof))["exactly once"] == ("yes" if shown else said)
    assert figures(proof)["exactly_once"] is shown
    write_report(proof, tmp_path / "report.html")
    (headline,) = [line for line in (tmp_path / "report.html").read_text().splitlines() if "<h1>" in line]
    assert f"{said}{'' if shown else ' (exit code 7)'}</span>" in headline


def test_a_job_that_makes_nothing_of_its_input_is_not_shown_to_be_right(tmp_path: Path) -> None:
    faults = [injected(FaultKind.KILL, happened=True)] * 3
    proofs = [
        Proof(
            a_trial(tmp_path),
            0.0,
            1.0,
            faults,
            [],
            History(),
            9,
            Verdict(Compared(records=9, empty=empty), ()),
        )
        for empty in (False, True)
    ]
    said = "not shown: the job makes no output of this input (transform, --input)"
    assert [verdict_of(proof) for proof in proofs] == ["exactly once", said]
    assert [code_of(proof) for proof in proofs] == [ExitCode.DONE, ExitCode.NOT_EXACTLY_ONCE]


@pytest.mark.parametrize(
    ("tried", "not_drawn"),
    [([FaultKind.KILL] * 3, ["drop", "broker"]), ([FaultKind.KILL, FaultKind.DROP, FaultKind.BROKER], [])],
)
def test_a_kind_that_the_seed_did_not_draw_is_named(
    tmp_path: Path, tried: list[FaultKind], not_drawn: list[str]
) -> None:
    faults = [injected(kind, happened=True) for kind in tried]
    proof = Proof(a_trial(tmp_path), 0.0, 1.0, faults, [], History(), 0, Verdict(None, ()))
    assert proof.exactly_once
    assert figures(proof)["not_drawn"] == not_drawn
    assert dict(rows(proof))["kinds of faults that were not drawn"] == (", ".join(not_drawn) or "none")


REPORT = Compared(records=0)


@pytest.mark.parametrize(
    ("verdict", "said", "code"),
    [
        (Verdict(REPORT, (), unfinished=("it did not catch up",)), "not finished: nothing speaks", 5),
        (Verdict(None, (), unfinished=("it could not be judged",)), "not finished, and not judged", 5),
        (Verdict(REPORT, ("1 lost",), unfinished=("it did not catch up",)), "not exactly once", 7),
        (Verdict(REPORT, ("1 lost",)), "not exactly once", 7),
    ],
)
def test_what_is_not_finished_is_not_called_wrong_and_what_is_wrong_is_called_so_in_any_case(
    tmp_path: Path, verdict: Verdict, said: str, code: int
) -> None:
    faults = [injected(FaultKind.KILL, happened=True)] * 3
    proof = Proof(a_trial(tmp_path), 0.0, 1.0, faults, [], History(), 0, verdict)
    assert verdict_of(proof).startswith(said)
    assert (code_of(proof), proof.exactly_once) == (code, False)
    assert figures(proof)["against"] == list(verdict.against)
    assert figures(proof)["unfinished"] == list(verdict.unfinished)
    write_report(proof, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert f"(exit code {code})</span></h1>" in page
    assert all(one in page for one in (*verdict.against, *verdict.unfinished))
    assert ("What speaks against it" in page) is bool(verdict.against)

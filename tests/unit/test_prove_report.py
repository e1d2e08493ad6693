"""The line that replays a trial has all that it was given."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from eos.prove.faults import Fault, Kind
from eos.prove.history import History
from eos.prove.judge import Verdict
from eos.prove.nemesis import Injected
from eos.prove.report import figures, replay_line, rows, verdict_of, write_report
from eos.prove.trial import Proof, Trial
from eos.testing.proxy import Edge


def a_trial(tmp_path: Path) -> Trial:
    return Trial(
        reference="relay:job",
        app_dir=tmp_path,
        options=["--set", "group=a b"],
        seed=7,
        faults=3,
        minutes=None,
        kinds=[Kind.KILL, Kind.DROP, Kind.BROKER],
        brokers=1,
        partitions=4,
        rate=500,
        directory=tmp_path,
        command='python loop.py "$EOS_GROUP"',
        source="feeds:some",
        ways={Kind.BROKER: ["killed", "paused"], Kind.DROP: ["answer lost"]},
        quiet=0.25,
        each=True,
    )


def test_the_replay_line_is_one_that_a_shell_reads_as_it_was_meant(tmp_path: Path) -> None:
    proof = Proof(a_trial(tmp_path), 0.0, 1.0, [], [], History(), 0, Verdict(None, ()))
    words = shlex.split(replay_line(proof))
    assert words[:3] == ["eos", "prove", "relay:job"]
    assert words.pop() == "--each"
    options = dict(zip(words[3::2], words[4::2], strict=True))
    assert options["--run"] == 'python loop.py "$EOS_GROUP"'
    assert (options["--set"], options["--input"], options["--seed"]) == ("group=a b", "feeds:some", "7")
    assert options["--app-dir"] == str(tmp_path)
    assert options["--only"] == "drop/answer lost,broker/killed,broker/paused,kill"
    assert (options["--faults"], options["--quiet"]) == ("3", "0.25")


def injected(kind: Kind, *, happened: bool) -> Injected:
    fault = Fault(1, kind, 1.0, 0.0, 0.5, None, Edge.REPLY, "")
    return Injected(fault, 0.0, 1.0, happened, "no transaction began")


@pytest.mark.parametrize(
    ("tried", "said"),
    [
        ([(Kind.KILL, True)] * 3, "exactly once"),
        ([(Kind.KILL, False), *[(Kind.KILL, True)] * 3], "exactly once"),
        ([(Kind.KILL, True)] * 2, "not shown: 2 of 3 faults happened"),
        (
            [*[(Kind.KILL, True)] * 3, (Kind.DROP, False), (Kind.DROP, False)],
            "not shown: drop did not happen in 2 tries (drop: no transaction began)",
        ),
    ],
)
def test_what_did_not_happen_is_the_verdict_and_no_footnote(
    tmp_path: Path, tried: list[tuple[Kind, bool]], said: str
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

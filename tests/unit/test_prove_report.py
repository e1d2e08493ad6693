"""The line that replays a trial has all that it was given."""

from __future__ import annotations

import shlex
from pathlib import Path

from eos.prove.faults import Kind
from eos.prove.history import History
from eos.prove.judge import Verdict
from eos.prove.report import replay_line
from eos.prove.trial import Proof, Trial


def test_the_replay_line_is_one_that_a_shell_reads_as_it_was_meant(tmp_path: Path) -> None:
    trial = Trial(
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
    proof = Proof(trial, 0.0, 1.0, [], [], History(), 0, Verdict(None, ()))
    words = shlex.split(replay_line(proof))
    assert words[:3] == ["eos", "prove", "relay:job"]
    assert words.pop() == "--each"
    options = dict(zip(words[3::2], words[4::2], strict=True))
    assert options["--run"] == 'python loop.py "$EOS_GROUP"'
    assert (options["--set"], options["--input"], options["--seed"]) == ("group=a b", "feeds:some", "7")
    assert options["--app-dir"] == str(tmp_path)
    assert options["--only"] == "drop/answer lost,broker/killed,broker/paused,kill"
    assert (options["--faults"], options["--quiet"]) == ("3", "0.25")

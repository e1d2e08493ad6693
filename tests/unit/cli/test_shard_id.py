"""`eos shard-id`: the ids that a job uses, and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from eos.exits import ExitCode
from eos.shards import parse_transactional_id
from tests.support.command_line import Eos

_JOB = "tests.support.jobs_for_tests:copying"
_APP_DIR = ("--app-dir", str(Path(__file__).parents[3]))


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        ([], ["copying.copying.i.0"]),
        (["--ordinal", "3"], ["copying.copying.i.3"]),
        (["--partition", "my.topic:7"], ["copying.copying.p.my.topic.7"]),
        (["--set", "group=a.b", "--ordinal", "3"], ["copying.a%2Eb.i.3"]),
        (
            ["--set", "workers.count=2", "--set", "ownership.ordinal=1"],
            ["copying.copying.i.2", "copying.copying.i.3"],
        ),
    ],
)
def test_the_ids_of_a_job(eos: Eos, arguments: list[str], ids: list[str]) -> None:
    ended = eos("shard-id", _JOB, *_APP_DIR, *arguments)
    assert (ended.code, ended.out.splitlines(), ended.err) == (ExitCode.DONE, ids, "")
    for transactional_id in ids:
        parse_transactional_id(transactional_id)


@pytest.mark.parametrize(
    ("transactional_id", "lines"),
    [
        ("copying.a%2Eb.i.3", ["app    copying", "group  a.b", "shard  instance 3"]),
        ("copying.g.p.my.topic.7", ["app    copying", "group  g", "shard  partition my.topic[7]"]),
        (
            "copying.g.o.3",
            ["app    copying", "group  g", "shard  output shard 3 of a streaming query"],
        ),
        (
            "copying.g.b.batch",
            ["app    copying", "group  g", "shard  a batch run: all input partitions in one transaction"],
        ),
        (
            "copying.g.s.start",
            ["app    copying", "group  g", "shard  the group's first offsets (start policy)"],
        ),
    ],
)
def test_an_id_is_parsed(eos: Eos, transactional_id: str, lines: list[str]) -> None:
    assert eos("shard-id", "--parse", transactional_id).out.splitlines() == lines


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--parse", "somebody-elses"], "'somebody-elses'"),
        ([], "--parse"),
        ([_JOB, *_APP_DIR, "--partition", "topic"], "--partition"),
        ([_JOB, *_APP_DIR, "--ordinal", "20261121"], "20261121"),
        (
            [
                _JOB,
                *_APP_DIR,
                "--set",
                "ownership.mode=partition",
                "--set",
                "ownership.instances=1",
                "--set",
                "ownership.ordinal=0",
            ],
            "bootstrap_servers",
        ),
        (["tests.support.jobs_for_tests:nothing", *_APP_DIR], "copying, limited"),
        (["jobs_for_tests", *_APP_DIR], "package.module:name"),
    ],
)
def test_what_cannot_be_answered_is_said(eos: Eos, arguments: list[str], named: str) -> None:
    ended = eos("shard-id", *arguments)
    assert (ended.code, ended.out) == (ExitCode.CONFIGURATION, "")
    assert named in ended.err

"""The grants that docker/compose.yaml gives to the refunds processor's user are those that `eos acl show` derives."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import command_line

_REPOSITORY = Path(__file__).parents[2]

pytest.importorskip("eos.cli.acl", reason="there is no `eos acl` yet")


def test_the_cluster_grants_what_the_job_needs_and_no_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(_REPOSITORY)
    options = ("--config", "conf/refunds.toml", "--principal", "User:refunds", "--format", "kafka-acls")
    ended = command_line(monkeypatch, capsys)("acl", "show", "jobs.refunds:job", *options)
    assert ended.code == 0, ended.err
    assert ended.out == (_REPOSITORY / "docker/cluster/grants.sh").read_text()

"""docs/guides/migrating.md: its job goes on where its loop was stopped, in the same group, and the loop where the job was."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from eos.testing import KafkaCluster
from tests.support.documents import blocks
from tests.support.own_broker import JARS
from tests.support.patience import PATIENCE_S
from tests.support.processes import running

pytestmark = pytest.mark.broker

PAGE = blocks("docs/guides/migrating.md")
GROUP = "ledger-loop"


def test_job_and_loop_of_the_page_each_go_on_where_the_other_was_stopped(tmp_path: Path) -> None:
    (tmp_path / "ledger.py").write_text(PAGE["From a plain loop (2)"])
    with KafkaCluster(kind="process", jars=JARS) as cluster:
        environment = {"EOS_KAFKA__BOOTSTRAP_SERVERS": cluster.bootstrap_servers}
        for topic in ("payments", "ledger"):
            cluster.create_topic(topic, partitions=1)

        cluster.produce("payments", [b"old %d" % number for number in range(50)])
        run_loop(cluster, until=50)
        assert sum(cluster.committed(GROUP).values()) == 50

        cluster.produce("payments", [b"new %d" % number for number in range(50)])
        adopting = run_eos(
            ["run", "ledger:job", "--until-caught-up", "--adopt-offsets"], tmp_path, environment
        )
        assert "another program's offsets adopted" in adopting
        ledger = Counter(record.value for record in cluster.read_committed("ledger"))
        assert ledger == Counter(
            record.value.upper() for record in cluster.read_committed("payments") if record.value
        )

        verify = ["verify", "ledger:job", "--input-from", "payments:0=50", "--output-from", "ledger:0=50"]
        assert "exactly once" in run_eos(verify, tmp_path, environment)

        cluster.produce("payments", [b"back %d" % number for number in range(10)])
        run_loop(cluster, until=110)
        ledger = Counter(record.value for record in cluster.read_committed("ledger"))
        assert ledger == Counter(
            record.value.upper() for record in cluster.read_committed("payments") if record.value
        )


def run_loop(cluster: KafkaCluster, *, until: int) -> None:
    """Run the page's loop until the output has so many records."""
    with running(
        PAGE["From a plain loop"], env={"EOS_KAFKA__BOOTSTRAP_SERVERS": cluster.bootstrap_servers}
    ) as loop:
        while len(cluster.read_committed("ledger")) < until:  # pytest's time limit ends it
            assert loop.alive
        loop.terminate()
        assert loop.wait(PATIENCE_S) == 0


def run_eos(arguments: Sequence[str], directory: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "eos.cli", *arguments, "--set", f"group={GROUP}"],
        cwd=directory,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout

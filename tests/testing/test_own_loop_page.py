"""docs/guides/own-loop.md: each program runs as it stands, one after the other on one cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from eos.testing import KafkaCluster
from tests.support.documents import blocks
from tests.support.own_broker import JARS
from tests.support.patience import PATIENCE_S
from tests.support.processes import running

pytestmark = pytest.mark.broker

PAGE = blocks("docs/guides/own-loop.md")


def test_the_programs_of_the_page_write_what_they_say(tmp_path: Path) -> None:
    with KafkaCluster(kind="process", jars=JARS) as cluster:
        environment = {"EOS_KAFKA__BOOTSTRAP_SERVERS": cluster.bootstrap_servers}

        def run(code: str) -> str:
            command = [sys.executable, "-W", "error", "-c", code]
            return subprocess.run(
                command,
                cwd=tmp_path,
                env={**os.environ, **environment},
                check=True,
                stdout=subprocess.PIPE,
                text=True,
                timeout=PATIENCE_S,
            ).stdout

        for topic in ("payments", "ledger", "audit"):
            cluster.create_topic(topic, partitions=2)

        run(PAGE["Output without input"])
        assert [record.value for record in cluster.read_committed("audit")] == [b"paid"]

        cluster.produce("payments", [b"payment %d" % number for number in range(499)])
        payments = Counter(record.value for record in cluster.read_committed("payments"))
        assert payments.total() == 500
        with running(PAGE["The loop"], env=environment) as loop:
            while len(cluster.read_committed("ledger")) < 500:  # pytest's time limit ends it
                assert loop.alive
            loop.terminate()
            assert loop.wait(PATIENCE_S) == 0
        assert Counter(record.value for record in cluster.read_committed("ledger")) == payments

        assert run(PAGE["What the block does with errors"]) == "500 records committed\n"
        assert Counter(record.value for record in cluster.read_committed("ledger")) == payments + payments

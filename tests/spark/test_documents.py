"""What the guides show of batches and streams runs as it stands there: the cells of one notebook."""

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

pytestmark = pytest.mark.broker

RUN_S = 240
BATCH = blocks("docs/guides/spark-batch.md")
STREAM = blocks("docs/guides/spark-stream.md")
SESSION = """
from pathlib import Path
from eos.spark import build_session
spark = build_session("page", "local[2,4]", [Path(jar) for jar in {jars!r}], {{"spark.sql.shuffle.partitions": "2"}})
"""
CAUGHT_UP = """
run.query.processAllAvailable()
run.query.stop()
assert run.sink.lastProgress["sink"]["numOutputRows"] == 20, run.sink.lastProgress
"""
FAN_OUT = """
for write in (write_together, write_apart):
    place = f"checkpoints/{write.__name__}"
    records = read_stream(spark, settings, ["whispers"], checkpoint=place)
    query = records.writeStream.foreachBatch(write).option("checkpointLocation", place).start()
    query.processAllAvailable()
    query.stop()
spark.stop()
"""


def test_the_cells_of_the_pages_write_each_record_once(connector_jars: list[Path], tmp_path: Path) -> None:
    """Both batches share a group, so the second one finds nothing new; each stream reads all of the input."""
    cells = [
        SESSION.format(jars=[str(jar) for jar in connector_jars]),
        BATCH["A batch"],
        BATCH["Batches one after another"],
        STREAM["A stream"],
        CAUGHT_UP,
        STREAM["Several outputs"],
        FAN_OUT,
    ]
    (tmp_path / "cells.py").write_text("\n".join(cells))
    with KafkaCluster(kind="process", jars=JARS) as cluster:
        for topic in ("whispers", "shouts", "audit"):
            cluster.create_topic(topic, partitions=2)
        cluster.produce("whispers", [b"psst %d" % number for number in range(20)])
        done = subprocess.run(
            [sys.executable, "cells.py"],
            cwd=tmp_path,
            env={**os.environ, "EOS_KAFKA__BOOTSTRAP_SERVERS": cluster.bootstrap_servers},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        seen = Counter(record.value for record in cluster.read_committed("shouts", "audit"))
    shouted = {b"PSST %d" % number: 4 for number in range(20)}  # a batch, a stream, two ways to fan out
    assert seen == shouted | {b"psst %d" % number: 2 for number in range(20)}

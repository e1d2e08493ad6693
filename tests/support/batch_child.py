"""A batch run in a process of its own, for tests that kill it or its executors.

    spark-submit … tests/support/batch_child.py <arguments of run as JSON>

Prints ``ranges <n>`` when the run is planned and ``done <state>=<n> …`` at its end.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from eos.errors import EosError
from eos.spark.batch.batch import ExactlyOnceBatch
from eos.spark.plan import Commit
from tests.support.settings import settings_of
from tests.support.spark_faults import Copy, make_sleepy


def run(
    *,
    settings: dict[str, Any],
    name: str,
    source: str,
    output: str,
    flag: str,
    commit: Commit = "partition",
    stalls: list[tuple[int, list[float | str]]] | None = None,
    after: int = 0,
    sleepy: int | None = None,
    until_done: bool = False,
) -> int:
    """Copy what is new, with accidents (see :mod:`tests.support.spark_faults`); returns the exit code."""
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    copy = Copy(flag, tuple((shard, tuple(tries)) for shard, tries in stalls or []), after)
    batch = ExactlyOnceBatch(spark, settings_of(**settings), name=name, inputs=[source], outputs=[output])
    with pytest.MonkeyPatch.context() as patch:
        if sleepy is not None:
            make_sleepy(patch, Path(flag), sleepy)
        try:
            while True:
                plan = batch.plan(commit)
                _say(f"ranges {len(plan)}")
                if until_done and not plan.ranges:
                    return 0
                result = batch.run(copy, commit=commit, plan=plan)
                states = Counter(str(one.state) for one in result.shards)
                _say("done " + " ".join(f"{state}={count}" for state, count in sorted(states.items())))
                if not until_done:
                    return 0
        except EosError as error:
            traceback.print_exc()  # Spark's own words are in the cause
            _say(f"failed {type(error).__name__}: {error}")
            return 1


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(run(**json.loads(sys.argv[1])))

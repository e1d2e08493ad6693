"""An executor that could not do a task's work is refused before anything is read or written, and the error says what it lacks."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.errors import StreamingQueryException

from eos.errors import ConfigError, UnavailableError
from eos.exits import ExitCode, exit_code_of
from eos.local.process import connects_from, identity_of
from eos.spark.write import executor_check
from eos.testing.proxy import ApiKey, Frame
from tests.support import observer
from tests.support.batch_input import BatchRuns
from tests.support.stream_copy import Copy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from eos.settings import Settings
    from eos.testing.proxy.hold_proxy import HoldProxy

pytestmark = pytest.mark.broker

MISSING = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in ("eos", "pyarrow"):
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Missing())
"""
OLDER = """
import collections, sys
Version = collections.namedtuple("Version", "major minor micro releaselevel serial")
sys.version_info = Version(3, 10, 4, "final", 0)
"""


@pytest.fixture
def runs(spark: SparkSession, bootstrap: str) -> BatchRuns:
    made = BatchRuns(spark, bootstrap, partitions=2, overrides={"kafka.client": {"client.id": "fit"}})
    made.fill(10)
    return made


@pytest.fixture
def executors_have(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Give the tasks another Python: code that it runs first, and versions that its packages seem to have."""

    def make(first: str = "", **versions: str) -> None:
        (tmp_path / "sitecustomize.py").write_text(first)
        for distribution, version in versions.items():
            name = distribution.replace("_", "-")
            place = tmp_path / f"{distribution}-{version}.dist-info"
            place.mkdir()
            (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        script = tmp_path / observer.unique("python")  # Spark keeps the workers of a name
        script.write_text(
            f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec {sys.executable} -m pyspark.daemon pyspark.worker\n'
        )
        script.chmod(0o755)
        monkeypatch.setattr(spark.sparkContext, "pythonExec", str(script))

    return make


def copied(df: DataFrame) -> DataFrame:
    return df.select("shard", "key", "value")


def refusal(runs: BatchRuns) -> str:
    with pytest.raises(ConfigError) as caught:
        runs.run(copied)
    assert exit_code_of(caught.value) is ExitCode.CONFIGURATION
    assert (runs.records(), runs.committed()) == ([], [None, None])  # not even the group's first offsets
    return str(caught.value)


def test_an_executor_that_fits_is_asked_once_in_an_application(
    runs: BatchRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    ask = executor_check._asked

    def counted(*given: Any) -> Any:
        asked.append(given)
        return ask(*given)

    monkeypatch.setattr(executor_check, "_asked", counted)
    monkeypatch.setattr(executor_check, "_fit", [])
    runs.run(copied)
    runs.fill(10)
    runs.run(copied)
    assert len(asked) == 1
    assert runs.assert_exactly_once(lambda r: [(runs.output, r.key, r.value)]).processed == 20


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"eos_kafka": "9.8.7"}, "eos 9.8.7 there, "),
        ({"pyarrow": "1.2.3"}, "pyarrow 1.2.3 there, "),
        ({"eos_kafka": "9.8.7", "pyarrow": "1.2.3"}, r"eos 9.8.7 there, [\d.]+ here; pyarrow 1.2.3 there"),
        ({"first": MISSING}, r"no eos there \(No module named 'eos'\); no pyarrow there"),
        ({"first": OLDER}, r"Python 3\.10 there, 3\.\d+ here"),
    ],
)
def test_what_an_executor_has_otherwise_is_named_before_anything_is_written(
    runs: BatchRuns, executors_have: Callable[..., None], given: dict[str, str], said: str
) -> None:
    executors_have(**given)
    message = refusal(runs)
    assert re.search(said, message), message
    assert "docs/guides/spark-dependencies.md#shipping-dependencies-to-executors" in message


def test_a_python_that_executors_do_not_have_is_named(
    runs: BatchRuns, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "./environment/bin/python")
    assert "it has no './environment/bin/python', by which its Python is to be started" in refusal(runs)


@pytest.mark.parametrize(
    "unheard", [pytest.param(ApiKey.METADATA, marks=pytest.mark.slow), ApiKey.LIST_OFFSETS]
)
def test_an_executor_that_does_not_reach_the_brokers_is_refused_if_the_driver_does(
    runs: BatchRuns, proxy: HoldProxy, unheard: ApiKey
) -> None:
    """Of two kinds: no broker answers, and those that the first one names do not."""
    driver = identity_of(os.getpid())
    assert driver is not None

    def of_a_task(frame: Frame) -> bool:
        return not connects_from(driver, frame.client_port, with_children=False)

    proxy.swallow(unheard, where=of_a_task, times=1_000)
    runs.overrides["kafka.bootstrap_servers"] = proxy.bootstrap_servers
    message = refusal(runs)
    assert "does not reach Kafka, and the driver does: " in message
    assert "docs/reference/spark-clusters.md#what-an-executor-needs" in message


@pytest.mark.slow
def test_a_cluster_that_nobody_reaches_is_out_of_reach_and_no_difference(runs: BatchRuns) -> None:
    runs.overrides |= {
        "kafka.bootstrap_servers": "127.0.0.1:1",
        "transaction.timeout_ms": 1_000,
    }
    with pytest.raises(UnavailableError):
        runs.run(copied)


def test_a_query_whose_executors_do_not_fit_writes_nothing_and_goes_on_when_they_do(
    spark: SparkSession,
    settled: Callable[..., Settings],
    bootstrap: str,
    tmp_path: Path,
    executors_have: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy = Copy(spark, settled(), bootstrap, tmp_path)
    copy.load(30)
    sink = copy.sink()
    executors_have(eos_kafka="9.8.7")
    with pytest.raises(StreamingQueryException, match=r"eos 9\.8\.7 there"):
        copy.run(sink)
    assert isinstance(sink.failure, ConfigError)
    assert copy.next_batches() == []
    assert observer.read_committed(bootstrap, copy.output) == []
    assert not list(copy.checkpoint.glob("eos-ledger-*"))
    monkeypatch.undo()
    copy.run()
    copy.expect_exactly_once()

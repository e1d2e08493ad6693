"""What an executor has otherwise than its driver, in words."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark import cloudpickle

from eos.errors import ConfigError, RetriableError, UnavailableError
from eos.spark import executor_check
from eos.spark.executor_check import _looker, differences
from tests.support.settings import settings_of

HERE = {"Python": "3.11.2", "eos": "0.1.0", "pyarrow": "26.0.1", "confluent_kafka": "2.16.0"}


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ({}, []),
        ({"Python": "3.11.9", "pyarrow": "26.1.0", "confluent_kafka": "2.15.0"}, []),
        ({"eos": ""}, []),  # of a source tree on PYTHONPATH
        ({"Python": "3.12.0"}, ["Python 3.12.0 there, 3.11.2 here"]),
        ({"eos": "0.1.1"}, ["eos 0.1.1 there, 0.1.0 here"]),
        ({"pyarrow": "25.0.0"}, ["pyarrow 25.0.0 there, 26.0.1 here"]),
        ({"confluent_kafka": "!no librdkafka.so"}, ["no confluent_kafka there (no librdkafka.so)"]),
    ],
)
def test_what_differs_is_named_with_both_versions(there: dict[str, str], said: list[str]) -> None:
    assert differences({**HERE, **there}, HERE) == said


def test_what_the_driver_does_not_reach_either_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def reach(*_: object) -> None:
        raise UnavailableError("no broker answered")

    settings = settings_of("a:1")
    monkeypatch.setattr(executor_check, "reach", lambda *_: None)
    with pytest.raises(ConfigError, match="does not reach Kafka, and the driver does: none there"):
        executor_check._require_alike(settings, ["out"], "worker-7", RetriableError("none there"))
    monkeypatch.setattr(executor_check, "reach", reach)
    executor_check._require_alike(settings, ["out"], "worker-7", RetriableError("none there"))


def test_the_task_looks_without_eos(tmp_path: Path) -> None:
    """It is what may be missing, so no function of a module of eos may travel."""
    for name in ("pyspark", "py4j"):  # as executors have them
        (tmp_path / name).symlink_to(Path(str(import_module(name).__file__)).parent)
    look = cloudpickle.dumps(_looker())  # type: ignore[no-untyped-call]
    script = f"import pickle, sys; sys.path.append({str(tmp_path)!r}); print(pickle.loads(sys.stdin.buffer.read())())"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], input=look, capture_output=True, check=True
    )
    assert b"'eos': \"!No module named 'eos'\"" in done.stdout

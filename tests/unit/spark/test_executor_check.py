"""What an executor has otherwise than its driver, in words."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark import cloudpickle

from eos.errors import ConfigError, RetriableError, UnavailableError
from eos.spark.write import executor_check
from eos.spark.write.executor_check import _looker, differences
from eos.spark.write.failures import encoded
from tests.support.settings import settings_of


def nullcontext_of(*_: object) -> AbstractContextManager[None]:
    return nullcontext()


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


@pytest.mark.parametrize(
    ("answers", "driver_reaches", "asked", "refused"),
    [
        (["", "never asked for"], True, 1, False),
        (["no broker", ""], True, 2, False),  # one that was away for a moment
        (["no broker", "still none"], True, 2, True),
        (["no broker", "never asked for"], False, 1, False),  # the run says it itself
    ],
)
def test_brokers_that_only_the_driver_reaches_are_a_difference(
    monkeypatch: pytest.MonkeyPatch, answers: list[str], driver_reaches: bool, asked: int, refused: bool
) -> None:
    def ask(*_: object) -> tuple[str, dict[str, str], str]:
        said.append(answers[len(said)])
        return "worker-7", _looker()(), encoded(RetriableError(said[-1])) if said[-1] else ""

    def reach(*_: object) -> None:
        if not driver_reaches:
            raise UnavailableError("none here")

    said: list[str] = []
    fit: list[object] = []
    for name, stand_in in {"_asked": ask, "_reach": reach, "_fit": fit, "step": nullcontext_of}.items():
        monkeypatch.setattr(executor_check, name, stand_in)
    spark = Mock()

    def check() -> None:
        executor_check.require_fit_executor(spark, settings_of("a:1"), ["out"], "job")

    if refused:
        with pytest.raises(
            ConfigError, match=r"\(worker-7\) does not reach Kafka, and the driver does: still none"
        ):
            check()
    else:
        check()
    assert (len(said), len(fit)) == (asked, int(driver_reaches and not refused))


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

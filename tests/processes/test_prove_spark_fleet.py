"""Spark's processes in a trial: known for what they are, chosen by what they do, and gone in the end."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from eos.prove.fleet import Fleet
from eos.prove.runtime import SPARK
from eos.prove.spark_instance import SparkInstance
from tests.support.patience import PATIENCE_S

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
JAVA = "org.apache.spark.deploy.SparkSubmit"
# A driver with its Java machine, below which are two executors, each with a daemon that has forked a task.
SLEEPS = "import time; time.sleep(600)"
FORKS = "import os, time; os.fork(); time.sleep(600)"
STARTS = "import subprocess, sys, time; [subprocess.Popen([sys.executable, '-c', *one]) for one in {}]; time.sleep(600)"
EXECUTES = [STARTS.format([[FORKS, "-m", "pyspark.daemon"]]), EXECUTOR]
DRIVES = STARTS.format([[STARTS.format([EXECUTES, EXECUTES]), JAVA]])


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet([sys.executable, "-c", DRIVES], tmp_path, runtime=SPARK)
    yield fleet
    fleet.kill()


def roles(instance: SparkInstance) -> list[str]:
    deadline = time.monotonic() + PATIENCE_S
    while len(found := [one.role for one in instance.workers]) < 6 and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def started(fleet: Fleet) -> SparkInstance:
    instance = fleet.start(0)
    assert isinstance(instance, SparkInstance)
    assert roles(instance) == ["task", "task", "executor", "executor", "driver's Java machine", "driver"]
    return instance


def test_tasks_executors_and_drivers_are_chosen_equally_often(fleet: Fleet) -> None:
    started(fleet)
    chosen = [str(one.role) for n in range(6) if (one := fleet.chosen(n / 6))]
    assert chosen == ["task", "task", "executor", "executor", "driver's Java machine", "driver"]


def test_the_executor_of_a_task_is_the_one_that_stands_above_it(fleet: Fleet) -> None:
    instance = started(fleet)
    for task in instance.workers[:2]:
        assert instance.chosen(instance.workers, 0.2, task) == task
        executor = instance.chosen(instance.workers, 0.5, task)
        assert executor is not None
        assert executor.identity.pid in {one.pid for one in psutil.Process(task.identity.pid).parents()}


def test_what_a_killed_driver_leaves_behind_belongs_to_the_instance_and_ends_with_it(fleet: Fleet) -> None:
    instance = started(fleet)
    left = [one.identity for one in instance.workers[:-1]]
    assert instance.whole.identity.pid not in {one.pid for one in left}
    assert instance.workers[-1].send(signal.SIGKILL)
    assert instance.wait(PATIENCE_S) == -signal.SIGKILL
    assert [one.identity for one in instance.workers] == left
    fleet.wait(PATIENCE_S, lambda: len(instance.workers) == 11)
    assert fleet.ends == {-signal.SIGKILL: 1}
    fleet.kill()
    assert not any(one.alive for one in left)
    assert not instance.workers


def test_a_driver_that_says_that_a_restart_does_not_help_is_not_started_again(tmp_path: Path) -> None:
    for code, again in ((1, True), (2, False), (3, True), (5, True), (6, False), (0, False)):
        fleet = Fleet(["sh", "-c", f"exit {code}"], tmp_path, runtime=SPARK)
        instance = fleet.start(code)
        instance.wait(PATIENCE_S)
        fleet.keep_up()
        assert bool(fleet.ended_for_good) is not again
        fleet.kill()

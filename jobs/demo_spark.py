"""The demonstration's second act: the refunds as a Spark batch, an executor killed inside its transactions.

The jobs run as users run them, by ``spark-submit``, the driver in a process of its own: the refunds on a standalone
cluster, the settlement report without one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from rich.progress import Progress

from eos import PartitionShard, Settings, UnavailableError
from eos.base.deadline import Deadline
from eos.local import QUICK_START, LocalSpark
from eos.local.pyspark_home import require_pyspark
from eos.offsets import Partition
from eos.ops.check.transactions import TransactionDescription, TransactionsView
from eos.ops.verifier.logs import LogReader
from jobs import refunds
from jobs.demo_report import Accident
from jobs.demo_transactions import is_writing

BATCH_GROUP = "refunds-batch-demo"
REPORT_GROUP = "settlement-report-demo"
BATCH_JOB = "refunds-batch"  # its name, which its transactional.ids begin with
REPORT_TOPIC = "settlement-report"

_CONF = Path(__file__).parent.parent / "conf"
_RUN_DEADLINE_S = 180.0
_LOCAL = "local[2,4]"  # two threads, four tries for a task
_LOOK_EVERY_S = 0.1  # a transaction is open for seconds; looking is work for the broker too
_LOOK_AGAIN_S = 0.2
_LOOKS_FOR_ONE = (
    3  # on a slow machine the tasks' transactions need not overlap; then all executors are killed
)
_ON_THE_WIRE_S = 0.1  # what a stopped process had sent before has reached the broker by then
_SHOWN_REPORTS = 4
_READ_DEADLINE_S = 30.0
_JAVA_OPTIONS = " ".join(QUICK_START)  # these machines live for half a minute
# Rows reach the writers in small portions, so that their transactions are open for most of their work.
_SPARK_CONF = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
    "spark.sql.shuffle.partitions": "4",  # two cores; Spark's default of 200 is for clusters
    "spark.executor.memory": "1g",
    "spark.driver.defaultJavaOptions": _JAVA_OPTIONS,
    "spark.executor.defaultJavaOptions": _JAVA_OPTIONS,
    "spark.ui.enabled": "false",
}


def run_and_kill_executor(
    progress: Progress, settings: Settings, spark: LocalSpark, *, jars: str, partitions: int, directory: Path
) -> tuple[Accident | None, int]:
    """Run the batch over all input, kill an executor on the way; returns the accident and the exit code."""
    task = progress.add_task("refunds batch on Spark: start", total=partitions)
    log_path = directory / "demo" / "refunds-batch.log"
    shards = _shards(partitions)
    with (
        TransactionsView(settings) as view,
        _submitted(
            "refunds_batch", settings, spark.master_url, group=BATCH_GROUP, jars=jars, log_path=log_path
        ) as driver,
    ):
        accident: Accident | None = None
        looks = 0
        killed_at = 0.0
        deadline = Deadline(_RUN_DEADLINE_S)
        while driver.poll() is None:
            states = view.describe(shards)
            progress.update(task, completed=sum(s.state == "CompleteCommit" for s in states.values()))
            if accident is None and _open(states):
                accident = _kill_inside_transaction(spark, view, shards, all_of_them=looks >= _LOOKS_FOR_ONE)
                if accident is not None:
                    killed_at = time.monotonic()
                    progress.update(task, description=f"killed {accident.victim}; its tasks are tried again")
                else:
                    looks += 1
                    time.sleep(_LOOK_AGAIN_S)  # or the tasks would stand still most of the time
            elif accident is not None and not accident.seconds:
                accident.epochs_after = _epochs(states)
                if _reopened(accident):
                    accident.seconds = time.monotonic() - killed_at
            if deadline.passed:
                raise UnavailableError(
                    f"the batch did not end in {_RUN_DEADLINE_S:.0f} s; its log: {log_path}"
                )
            time.sleep(_LOOK_EVERY_S)
        if accident is not None:
            accident.epochs_after = _epochs(view.describe(shards))
            # Executors that were not killed had transactions too; the victims' are those that were opened anew.
            accident.open_shards = {name: accident.open_shards[name] for name in _reopened(accident)}
        progress.update(task, completed=partitions)
    if driver.returncode:
        progress.console.print(f"[red]spark-submit ended with {driver.returncode}; its log: {log_path}[/]")
    return accident, driver.returncode


@contextmanager
def reporting(
    progress: Progress, settings: Settings, *, jars: str, directory: Path
) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Run the settlement report beside the block, its tasks in the driver: no executor has to be started.

    Yields:
        A function that waits for its end and returns what it has written of the merchants with the most settled.
    """
    task = progress.add_task("settlement report on Spark", total=None)
    log_path = directory / "demo" / "settlement-report.log"
    with _submitted(
        "settlement_report", settings, _LOCAL, group=REPORT_GROUP, jars=jars, log_path=log_path
    ) as driver:

        def largest() -> list[dict[str, Any]]:
            if code := driver.wait(_RUN_DEADLINE_S):
                raise UnavailableError(
                    f"the settlement report ended with exit code {code}; its log: {log_path}"
                )
            reports = [json.loads(value) for value in _values(settings, REPORT_TOPIC)]
            shown = f"settlement report: {len(reports):,} records"
            progress.update(task, description=shown, total=1, completed=1)
            reports.sort(key=lambda one: -sum(total["settled_minor"] for total in one["totals"]))
            return reports[:_SHOWN_REPORTS]

        yield largest


def _kill_inside_transaction(
    spark: LocalSpark, view: TransactionsView, shards: Sequence[str], *, all_of_them: bool
) -> Accident | None:
    """Stop all executors, look whether each is inside a transaction, and only then SIGKILL one; None if not so.

    An executor of one core has one task and so at most one transaction: as many open ones as executors are one
    of each. If fewer are open, nothing tells whose they are; ``all_of_them`` then kills every executor. The Python
    processes of an executor go with it, as with a lost container: alone, they may still end their work.
    """
    trees = _trees(spark.executors())
    if not trees:
        return None
    try:
        for process in (process for tree in trees for process in tree):
            process.suspend()
        time.sleep(_ON_THE_WIRE_S)
        states = view.describe(shards)
        is_open = _open(states)
        if not is_open or (len(is_open) < len(trees) and not all_of_them):
            return None
        victims = trees if len(is_open) < len(trees) else trees[:1]
        for process in (process for tree in victims for process in tree):
            process.kill()
        pids = ", ".join(str(tree[0].pid) for tree in victims)
        name = f"an executor (pid {pids})" if len(victims) == 1 else f"{len(victims)} executors (pids {pids})"
        return Accident(name, is_open, _epochs(states))
    except psutil.NoSuchProcess:  # one was just ending
        return None
    finally:
        for process in (process for tree in trees for process in tree):
            with suppress(psutil.NoSuchProcess):
                process.resume()


def _open(states: Mapping[str, TransactionDescription]) -> dict[str, TransactionDescription]:
    return {name: state for name, state in states.items() if is_writing(state, refunds.job.written_topics)}


def _trees(executors: Sequence[int]) -> list[list[psutil.Process]]:
    """Each executor and its Python processes.

    A process that an executor has just forked looks like an executor until it becomes what it was forked for.
    """
    trees = []
    for pid in executors:
        with suppress(psutil.NoSuchProcess):
            executor = psutil.Process(pid)
            if executor.ppid() not in executors:
                trees.append([executor, *executor.children(recursive=True)])
    return trees


def _reopened(accident: Accident) -> list[str]:
    """The shards whose transaction has a new owner. A commit alone leaves the epoch as it was."""
    now = accident.epochs_after
    return [name for name in accident.open_shards if now.get(name, -1) > accident.epochs_before[name]]


def _shards(partitions: int) -> list[str]:
    found = (Partition(refunds.SETTLEMENTS, number) for number in range(partitions))
    return [PartitionShard(BATCH_JOB, BATCH_GROUP, partition).transactional_id for partition in found]


def _epochs(states: Mapping[str, TransactionDescription]) -> dict[str, int]:
    return {name: state.producer_epoch for name, state in states.items()}


@contextmanager
def _submitted(
    job: str, settings: Settings, master: str, *, group: str, jars: str, log_path: Path
) -> Iterator[subprocess.Popen[bytes]]:
    options = [f"{name}={value}" for name, value in _SPARK_CONF.items()]
    command = [str(require_pyspark() / "bin" / "spark-submit"), "--master", master, "--jars", jars]
    command += [part for option in options for part in ("--conf", option)]
    command += [str(Path(__file__).parent / f"{job}.py"), "--config", str(_CONF / f"{job}.toml")]
    command += ["--start", "earliest"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent.parent),  # the jobs; eos itself is installed
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "EOS_KAFKA__BOOTSTRAP_SERVERS": settings.kafka.bootstrap_servers or "",
        "EOS_GROUP": group,
    }
    with log_path.open("wb") as log:
        driver = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    try:
        yield driver
    finally:
        if driver.poll() is None:
            driver.terminate()
            try:
                driver.wait(20)
            except subprocess.TimeoutExpired:
                driver.kill()
                driver.wait()


def _values(settings: Settings, topic: str) -> Iterator[bytes]:
    """Every committed value of a topic."""
    with LogReader(settings, REPORT_GROUP, Deadline(_READ_DEADLINE_S)) as reader:
        for record in reader.records(reader.settled(reader.partitions([topic]))):
            if record.value is not None:
                yield record.value

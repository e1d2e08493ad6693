"""LocalSpark: a real master with real workers, its accidents, and that nothing of it is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from eos.base.deadline import Deadline
from eos.errors import ConfigError, UsageError
from eos.exits import ExitCode
from eos.local import LocalSpark, spark_cluster, state
from eos.local.process import Identity, identity_of
from eos.local.pyspark_home import find_pyspark
from eos.local.spark_launch import TOKEN
from eos.local.state import SparkState
from eos.local.tagged import tagged
from tests.support.command_line import Eos
from tests.support.documents import blocks
from tests.support.patience import PATIENCE_S
from tests.support.processes import Child, running

_REPOSITORY = Path(__file__).parents[2]
_BIN = Path(sys.executable).parent

pytestmark = pytest.mark.xdist_group("local-spark")
needs_spark = pytest.mark.skipif(find_pyspark() is None, reason="PySpark is not installed: eos-kafka[spark]")

# Each task tells its process id and the Python it runs in, and waits until the file exists.
_JOB = """
import os, sys, time
from pyspark.sql import SparkSession

def task(partition, _, gate=sys.argv[1]):
    end = time.monotonic() + 600
    while not os.path.exists(gate) and time.monotonic() < end:
        time.sleep(0.05)
    return [(partition, sys.executable)]

spark = SparkSession.builder.getOrCreate()
seen = spark.sparkContext.parallelize(range(2), 2).mapPartitionsWithIndex(lambda p, i: task(p, i)).collect()
print("seen", sorted(seen), flush=True)
"""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSpark]:
    """One cluster of two workers for the tests that leave it whole."""
    with LocalSpark(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


@contextmanager
def submit(cluster: LocalSpark, directory: Path, gate: Path) -> Iterator[Child]:
    """The job above by the installed PySpark's ``spark-submit``, as in an activated environment."""
    job = directory / "job.py"
    job.write_text(_JOB)
    # A Spark session that other tests have in this process names its Python in the environment.
    script = "import os, sys; os.environ.pop('PYSPARK_PYTHON', None); "
    script += f"os.execv({str(_BIN / 'spark-submit')!r}, ['spark-submit', *sys.argv[1:]])"
    options = ["--master", cluster.master_url, "--driver-memory", "512m", "--executor-memory", "512m"]
    options += ["--conf", "spark.ui.enabled=false"]
    environment = {
        "PATH": os.pathsep.join([str(_BIN), os.environ["PATH"]]),
        "SPARK_LOCAL_IP": "127.0.0.1",  # the driver's
        "PYTHONPATH": "",
    }
    with running(script, *options, str(job), str(gate), env=environment) as child:
        yield child


def _wait_until_at_work(cluster: LocalSpark, executors: int) -> None:
    """Each executor has started a Python process for its task."""

    def at_work() -> bool:
        pids = cluster.executors()
        return len(pids) == executors and all(map(_runs_python, pids))

    assert Deadline(PATIENCE_S).wait_for(at_work)


def _runs_python(executor: int) -> bool:
    """Whether Spark's Python daemon and a worker of it are there; other children are helpers of a moment."""
    try:
        below = psutil.Process(executor).children(recursive=True)
        return sum("pyspark.daemon" in process.cmdline() for process in below) > 1
    except psutil.NoSuchProcess:
        return False


def _gone(identities: list[Identity]) -> bool:
    return Deadline(PATIENCE_S).wait_for(lambda: not any(identity.alive for identity in identities))


def _everything(cluster: LocalSpark) -> list[Identity]:
    """Every process of the cluster, as the process table knows them: by the tree, not by the tag."""
    parts = [part.pid for part in cluster.processes if part.pid is not None]
    below = [child.pid for pid in parts for child in psutil.Process(pid).children(recursive=True)]
    return [identity for pid in {*parts, *below} if (identity := identity_of(pid)) is not None]


@needs_spark
@pytest.mark.slow
def test_a_job_runs_on_both_workers_and_goes_on_after_its_executor_is_killed(
    spark: LocalSpark, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with submit(spark, tmp_path, gate) as driver:
        _wait_until_at_work(spark, 2)
        victim, survivor = spark.executors()
        parents = {psutil.Process(pid).ppid() for pid in (victim, survivor)}
        assert parents == set(spark.workers)
        python = [identity_of(process.pid) for process in psutil.Process(victim).children(recursive=True)]

        spark.kill_executor(victim)

        assert victim not in spark.executors()
        assert _gone([identity for identity in python if identity is not None])
        assert Deadline(PATIENCE_S).wait_for(lambda: len(spark.executors()) == 2), "another one is started"
        gate.touch()
        seen = driver.wait_line("^seen", PATIENCE_S)
        assert driver.wait(PATIENCE_S) == 0
    # The driver named no Python, so "python3": the workers' PATH makes it the one that started the cluster.
    assert seen == f"seen {[(partition, str(_BIN / 'python3')) for partition in range(2)]}"
    assert Deadline(PATIENCE_S).wait_for(lambda: spark.executors() == [])


@needs_spark
def test_everything_listens_on_loopback_only(spark: LocalSpark) -> None:
    for identity in _everything(spark):
        listening = [
            connection.laddr.ip
            for connection in psutil.Process(identity.pid).net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}


@needs_spark
def test_a_running_cluster_is_neither_started_twice_nor_taken_over(
    spark: LocalSpark, tmp_path: Path, eos: Eos
) -> None:
    before = spark.processes
    spark.start()
    assert spark.processes == before
    directory = spark.processes[0].log_path.parents[2]
    with pytest.raises(ConfigError, match=r"2 worker\(s\), not 3.*eos local spark stop"):
        LocalSpark(directory, workers=3).start()
    with pytest.raises(ConfigError, match=r"is not ours.*eos local spark stop"):
        LocalSpark(directory, owned=False).start()
    attached = LocalSpark.attach(directory)
    assert attached is not None
    assert (attached.master_url, attached.workers) == (spark.master_url, spark.workers)


@pytest.mark.slow
@needs_spark
def test_what_is_no_part_of_the_cluster_is_not_killed(spark: LocalSpark) -> None:
    with pytest.raises(UsageError, match="is no executor"):
        spark.kill_executor(os.getpid())
    with pytest.raises(UsageError, match="is no worker"):
        spark.kill_worker(os.getpid())


@needs_spark
@pytest.mark.slow
def test_the_cluster_of_the_documentation_starts_and_leaves_nothing(tmp_path: Path) -> None:
    with running(
        blocks("docs/guides/spark-cluster.md")["A standalone cluster on this machine"], cwd=tmp_path
    ) as child:
        child.wait_line(r"^spark://127\.0\.0\.1:\d+ \[\d+, \d+\]$", PATIENCE_S)
        assert child.wait(PATIENCE_S) == 0
    assert LocalSpark.attach(tmp_path / "spark") is None


_OWNER = """
import sys, time
from eos.local import LocalSpark
spark = LocalSpark(sys.argv[1], workers=1)
spark.start()
print(spark.master_url, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@needs_spark
def test_killed_owner_leaves_nothing(tmp_path: Path) -> None:
    with running(_OWNER, str(tmp_path)) as owner:
        owner.wait_line("^spark://", PATIENCE_S)
        cluster = LocalSpark.attach(tmp_path)
        assert cluster is not None
        everything = _everything(cluster)
        assert len(everything) == 2, "master and worker"
        owner.kill()
        assert _gone(everything)
    assert LocalSpark.attach(tmp_path) is None


@needs_spark
@pytest.mark.slow
def test_killed_owner_leaves_not_even_a_paused_executor(tmp_path: Path) -> None:
    """An executor ends by itself when it misses its worker; a paused one cannot."""
    with running(_OWNER, str(tmp_path)) as owner:
        owner.wait_line("^spark://", PATIENCE_S)
        cluster = LocalSpark.attach(tmp_path)
        assert cluster is not None
        with submit(cluster, tmp_path, tmp_path / "gate") as driver:
            _wait_until_at_work(cluster, 1)
            everything = _everything(cluster)
            assert len(everything) == 5, "master, worker, executor, its Python daemon and the daemon's worker"
            os.kill(cluster.executors()[0], signal.SIGSTOP)
            owner.kill()
            assert _gone(everything)
            driver.kill()


@pytest.mark.slow
@needs_spark
def test_background_cluster_runs_until_it_is_stopped(eos: Eos, tmp_path: Path) -> None:
    """From the command line; whoever started it has long ended."""
    where = ("--directory", str(tmp_path))
    with _in_background(eos, tmp_path) as cluster:
        assert eos("local", "spark", "status", *where).code == ExitCode.DONE
        everything = _everything(cluster)
        cluster.kill_worker(cluster.workers[0])
        status = eos("local", "spark", "status", *where)
        assert status.code == ExitCode.UNAVAILABLE
        assert re.search(r"worker 1 +down", status.out)
        assert eos("local", "spark", "stop", *where).code == ExitCode.DONE
        assert _gone(everything)
    assert eos("local", "spark", "status", *where).code == ExitCode.UNAVAILABLE


@needs_spark
@pytest.mark.slow
def test_stopped_cluster_leaves_no_executor_of_a_killed_worker_and_no_paused_one(
    eos: Eos, tmp_path: Path
) -> None:
    with (
        _in_background(eos, tmp_path) as cluster,
        submit(cluster, tmp_path, tmp_path / "gate") as driver,
    ):
        _wait_until_at_work(cluster, 2)
        everything = _everything(cluster)
        first, second = cluster.workers
        (theirs,) = (pid for pid in cluster.executors() if psutil.Process(pid).ppid() == first)
        os.kill(theirs, signal.SIGSTOP)
        cluster.kill_worker(first)
        assert theirs not in cluster.executors()

        # The worst case: its worker is gone, and it cannot notice. Its Python process neither.
        (last,) = cluster.executors()
        for process in (psutil.Process(last), *psutil.Process(last).children(recursive=True)):
            process.suspend()
        os.kill(second, signal.SIGKILL)
        assert cluster.executors() == [last]
        cluster.stop()
        assert _gone(everything)
        driver.kill()


@contextmanager
def _in_background(eos: Eos, directory: Path) -> Iterator[LocalSpark]:
    try:
        started = eos("local", "spark", "start", "--directory", str(directory))
        assert started.code == ExitCode.DONE, started.err
        cluster = LocalSpark.attach(directory)
        assert cluster is not None
        assert started.out == f"{cluster.master_url}\n"
        yield cluster
        last = state.load(directory / "spark" / "state.json", SparkState)
        assert last is not None
        assert tagged(TOKEN, last.token) == []
    finally:
        eos("local", "spark", "stop", "--directory", str(directory))


# -- without a cluster


def _state(directory: Path, *, master: Identity | None, owner: Identity | None = None) -> SparkState:
    written = SparkState("0" * 32, 20001, 20002, 1, master, (), owner)
    (directory / "spark").mkdir(exist_ok=True)
    state.save(directory / "spark" / "state.json", written)
    return written


def test_state_survives_its_file(tmp_path: Path) -> None:
    written = _state(tmp_path, master=Identity(7, 1.0), owner=Identity(8, 2.0)).with_worker(Identity(9, 3.0))
    path = tmp_path / "spark" / "state.json"
    state.save(path, written)
    assert state.load(path, SparkState) == written


def test_reused_process_id_is_not_attached_to_and_not_ended(tmp_path: Path) -> None:
    """The id is this test's, the start is not."""
    _state(tmp_path, master=Identity(os.getpid(), 0.0))
    assert LocalSpark.attach(tmp_path) is None
    LocalSpark(tmp_path).stop(grace_s=0)


def test_only_processes_that_carry_the_word_are_found(tmp_path: Path) -> None:
    """Also when they have left their parent, their directory and their process group."""
    script = f"cd /; sleep 600 & echo $!; EOS_TEST={'b' * 32} sleep 600 & echo $!"
    with (tmp_path / "pids").open("w") as output:
        environment = {**os.environ, "EOS_TEST": "a" * 32}
        subprocess.run(
            ["sh", "-c", script], env=environment, stdout=output, check=True, start_new_session=True
        )
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    try:
        # A process that was just forked still has the environment of the shell.
        assert Deadline(PATIENCE_S).wait_for(lambda: _carriers("a" * 32) == pids[:1])
        assert Deadline(PATIENCE_S).wait_for(lambda: _carriers("b" * 32) == pids[1:])
        assert [process.command for process in tagged("EOS_TEST", "b" * 32)] == [["sleep", "600"]]
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def _carriers(value: str) -> list[int]:
    return [process.identity.pid for process in tagged("EOS_TEST", value)]


def test_cluster_that_could_not_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="workers = 0"):
        LocalSpark(tmp_path, workers=0)
    with pytest.raises(ConfigError, match="worker_memory_mb = 64"):
        LocalSpark(tmp_path, worker_memory_mb=64)


def test_use_before_start_says_so(tmp_path: Path) -> None:
    cluster = LocalSpark(tmp_path)
    assert cluster.processes == []
    assert not cluster.running
    cluster.stop()
    with pytest.raises(UsageError, match=r"call start\(\)"):
        _ = cluster.master_url


def test_missing_pyspark_and_missing_java_are_named(
    eos: Eos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("--directory", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(spark_cluster, "require_pyspark", lambda: tmp_path)
    ended = eos("local", "spark", "start", *where)
    assert (ended.code, ended.out) == (ExitCode.CONFIGURATION, "")
    assert "JAVA_HOME" in ended.err
    monkeypatch.undo()
    monkeypatch.setattr("eos.local.pyspark_home.find_pyspark", lambda: None)
    ended = eos("local", "spark", "start", *where)
    assert (ended.code, ended.out) == (ExitCode.CONFIGURATION, "")
    assert "eos-kafka[spark]" in ended.err


@pytest.fixture
def spark_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], LocalSpark]:
    """A cluster of a Spark that does something else."""

    def make(serve: str) -> LocalSpark:
        spark_class = tmp_path / "home" / "bin" / "spark-class"
        spark_class.parent.mkdir(parents=True)
        spark_class.write_text(f"#!/bin/sh\n{serve}\n")
        spark_class.chmod(0o755)
        monkeypatch.setattr(spark_cluster, "require_pyspark", lambda: tmp_path / "home")
        return LocalSpark(tmp_path)

    return make


def test_master_that_ends_while_starting_shows_its_last_words(
    tmp_path: Path, spark_that: Callable[[str], LocalSpark]
) -> None:
    spark = spark_that("echo 'No space left on device'; exit 3")
    with pytest.raises(
        ConfigError, match=r"(?s)the master .* ended while starting.*master\.log.*No space left"
    ):
        spark.start()
    assert LocalSpark.attach(tmp_path) is None


def test_port_taken_between_choice_and_start_is_chosen_anew(
    tmp_path: Path, spark_that: Callable[[str], LocalSpark]
) -> None:
    spark = spark_that(f'echo "$@" >>{tmp_path}/tries; echo "Address already in use"; exit 1')
    with pytest.raises(ConfigError, match="Address already in use"):
        spark.start()
    assert len(set((tmp_path / "tries").read_text().splitlines())) == 3


def test_settings_of_another_spark_do_not_reach_the_cluster(
    tmp_path: Path, spark_that: Callable[[str], LocalSpark], monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = spark_that(f"env >{tmp_path}/environment; exit 1")
    monkeypatch.setenv("SPARK_MASTER_OPTS", "-Dx=y")
    monkeypatch.setenv("PYSPARK_PYTHON", "other")
    monkeypatch.setenv("PYTHONPATH", "/other")
    with pytest.raises(ConfigError):
        spark.start()
    names = {line.partition("=")[0] for line in (tmp_path / "environment").read_text().splitlines()}
    assert names.isdisjoint({"SPARK_MASTER_OPTS", "PYSPARK_PYTHON", "PYTHONPATH"})
    assert {"SPARK_HOME", "SPARK_LOCAL_IP", TOKEN} <= names


def test_master_that_never_answers_is_ended_at_the_deadline(
    tmp_path: Path, spark_that: Callable[[str], LocalSpark]
) -> None:
    spark = spark_that("echo 'still thinking'; exec sleep 600")
    with pytest.raises(Exception, match=r"(?s)was not ready in time.*still thinking"):
        spark.start(timeout_s=0.3)
    assert LocalSpark.attach(tmp_path) is None

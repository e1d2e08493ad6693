"""`eos spark` as a process: a run is exact, says what it did, and ends as `eos run` does."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from eos.exits import ExitCode
from tests.conftest import NewTopic
from tests.spark.conftest import Settled
from tests.support import observer
from tests.support.observer import PlainRecord
from tests.support.patience import PATIENCE_S
from tests.support.processes import Child, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.broker

_REPOSITORY = Path(__file__).parents[2]
_JOBS = "tests.support.jobs_for_spark_cli"
_SCRIPT = "import sys\nfrom eos.cli import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
_SMALL = ("--master", "local[2,4]", "--conf", "spark.driver.memory=1g")
_PARTITIONS = 3

Eos = Callable[..., AbstractContextManager[Child]]


@pytest.fixture
def source(bootstrap: str, topic: NewTopic, connector_jars: list[Path]) -> str:
    name = topic("spark-cli", _PARTITIONS)
    observer.create_topics(bootstrap, {f"{name}.copies": 2})
    return name


@pytest.fixture
def eos(bootstrap: str, source: str, tmp_path: Path) -> Eos:
    """Run the command for the topic, in a group of its name."""
    script = tmp_path / "eos-script.py"
    script.write_text(_SCRIPT)
    env = {
        "TEST_INPUT": source,
        "EOS_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
        "EOS_GROUP": source,
        "EOS_TRANSACTION__TIMEOUT_MS": "20000",
        "EOS_LOCAL__JARS": os.environ.get("EOS_LOCAL__JARS", str(_REPOSITORY / ".eos" / "jars")),
        "COLUMNS": "100",
    }

    @contextmanager
    def run(*arguments: str, **changes: str) -> Iterator[Child]:
        with running(script, *arguments, env=env | changes, cwd=_REPOSITORY) as child:
            yield child

    return run


def produce(bootstrap: str, topic: str, count: int, *, first: int = 0) -> None:
    records = [PlainRecord(b"v%d" % i, b"k%d" % i, i % _PARTITIONS) for i in range(first, first + count)]
    observer.produce_plain(bootstrap, topic, records)


def ended(child: Child, code: int) -> str:
    """Everything it has printed, after it has ended with this code."""
    assert child.wait(PATIENCE_S) == code, "\n".join(child.lines)
    return "\n".join(child.lines)


def row(shown: str, first: str) -> list[str]:
    return next(line.split() for line in shown.splitlines() if line.split()[:1] == [first])


def assert_exact(bootstrap: str, source: str, processed: int) -> None:
    outcome = observer.assert_exactly_once(
        bootstrap, source, [source], [f"{source}.copies"], lambda r: [(f"{source}.copies", r.key, r.value)]
    )
    assert outcome.processed == processed


def test_plan_is_shown_then_run_in_steps_until_caught_up_and_exact(
    eos: Eos, bootstrap: str, source: str
) -> None:
    produce(bootstrap, source, 300)
    with eos("spark", "plan", f"{_JOBS}:copying") as child:
        assert "--start earliest" in ended(child, ExitCode.CONFIGURATION)
    with eos("spark", "plan", f"{_JOBS}:copying", "--start", "earliest", "--max-records", "60") as child:
        shown = ended(child, ExitCode.DONE)
    assert row(shown, f"{source}[1]") == [f"{source}[1]", "0", "60", "60"]
    assert row(shown, "3")[-1] == "180"
    with eos("spark", "plan", f"{_JOBS}:copying", "--start", "earliest", "--explain") as child:
        assert "rows: in place, 3 tasks" in ended(child, ExitCode.DONE)
    groups = observer.committed_offsets(bootstrap, source, [(source, p) for p in range(_PARTITIONS)])
    assert {offset for offset, _ in groups.values()} == {None}  # a plan commits nothing

    with eos(
        "spark",
        "run",
        f"{_JOBS}:copying",
        *_SMALL,
        "--start",
        "earliest",
        "--max-records",
        "60",
        "--until-caught-up",
    ) as child:
        shown = ended(child, ExitCode.DONE)

    assert row(shown, "1")[:6] == ["1", "3", "3", "0", "0", "180"]
    assert row(shown, "2")[:6] == ["2", "3", "3", "0", "0", "120"]
    assert "rows: in place, 3 tasks" in shown
    assert "input planned" in shown
    assert not [line for line in child.lines if " spark " in line]  # none of Spark's own lines
    assert_exact(bootstrap, source, 300)


def test_wrong_settings_are_said_before_spark_starts(eos: Eos) -> None:
    with eos("spark", "run", f"{_JOBS}:suffixed", "--set", "job.sufix=x") as child:
        assert "job.suffix" in ended(child, ExitCode.CONFIGURATION)
    with eos("spark", "run", f"{_JOBS}:copying", "--set", "job.suffix=x") as child:
        assert "declares no settings" in ended(child, ExitCode.CONFIGURATION)
    with eos("spark", "run", f"{_JOBS}:expected") as child:
        assert "it has: copying, exiting, refusing, streaming, suffixed" in ended(
            child, ExitCode.CONFIGURATION
        )


_OF_ITS_MODULE = """
import os
from eos.spark.jobs import SparkJob

INPUT = os.environ["TEST_INPUT"]

def kept(batches):
    yield from batches

def transform(frame):
    rows = frame.select("shard", "key", "value")
    return rows.mapInArrow(kept, rows.schema)

job = SparkJob(name="own", inputs=[INPUT], outputs=[f"{INPUT}.copies"], transform=transform)
"""


def test_tasks_find_the_functions_of_a_module_that_is_in_app_dir(
    eos: Eos, bootstrap: str, source: str, tmp_path: Path
) -> None:
    """The driver found it, and the tasks on the same machine ended with "has no module"."""
    (tmp_path / "of_its_module.py").write_text(_OF_ITS_MODULE)
    produce(bootstrap, source, 30)
    command = ("spark", "run", "of_its_module:job", "--app-dir", str(tmp_path), "--start", "earliest")
    with eos(*command, *_SMALL) as child:
        ended(child, ExitCode.DONE)
    assert_exact(bootstrap, source, 30)


@pytest.mark.slow
def test_batch_runs_again_in_its_session_until_it_is_stopped(eos: Eos, bootstrap: str, source: str) -> None:
    produce(bootstrap, source, 30)
    with eos("spark", "run", f"{_JOBS}:copying", *_SMALL, "--start", "earliest", "--every", "0.5") as child:
        child.wait_line("input planned.*nothing new", PATIENCE_S)  # behind the run that took all
        produce(bootstrap, source, 60, first=30)
        child.wait_line(r"input planned.*\[10, 30\)", PATIENCE_S)
        child.wait_line("input planned.*nothing new", PATIENCE_S, after=len(child.lines))
        child.signal(signal.SIGTERM)
        ended(child, ExitCode.DONE)
    assert_exact(bootstrap, source, 90)


@pytest.mark.slow
def test_run_at_work_ends_before_a_batch_that_runs_again_is_stopped(
    eos: Eos, bootstrap: str, source: str
) -> None:
    produce(bootstrap, source, 30)
    command = ("spark", "run", f"{_JOBS}:copying", *_SMALL, "--start", "earliest", "--every", "0")
    with eos(*command, TEST_SECONDS_PER_TASK="6") as child:
        child.wait_line("input planned", PATIENCE_S)
        child.signal(signal.SIGTERM)
        shown = ended(child, ExitCode.DONE)
    assert shown.count("input planned") == 1
    assert_exact(bootstrap, source, 30)


@pytest.mark.slow
@pytest.mark.parametrize("job", ["copying", "streaming"])
def test_run_whose_java_machine_is_killed_says_so_and_the_next_one_is_exact(
    eos: Eos, bootstrap: str, source: str, tmp_path: Path, job: str
) -> None:
    """It ended with the traceback of the session's stop, over the error that told of it."""
    produce(bootstrap, source, 30)
    command = ["spark", "run", f"{_JOBS}:{job}", *_SMALL, "--start", "earliest"]
    command += ["--checkpoint", str(tmp_path / "checkpoint")] if job == "streaming" else []
    with eos(*command, *(["--every", "0.5"] if job == "copying" else [])) as child:
        deadline = time.monotonic() + PATIENCE_S
        while _processed(bootstrap, source, job) < 30:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        (java,) = [one for one in psutil.Process(child.pid).children() if "java" in one.name()]
        java.kill()
        shown = ended(child, ExitCode.UNEXPECTED)
    assert "the driver's JVM has ended" in shown
    assert "Connection refused" not in shown
    produce(bootstrap, source, 30, first=30)
    with eos(*command, "--until-caught-up") as child:
        ended(child, ExitCode.DONE)
    assert _processed(bootstrap, source, job) == 60
    found = observer.read_committed(bootstrap, f"{source}.copies")  # a query's shards keep the order of a key
    assert sorted(one.value or b"" for one in found) == sorted(b"v%d" % i for i in range(60))


def _group(source: str, job: str) -> str:
    """Whose offsets are those of the input: a query's are the marks of its ledger."""
    return source if job == "copying" else f"{source}.{job}.ledger.0"


def _processed(bootstrap: str, source: str, job: str) -> int:
    partitions = [(source, p) for p in range(_PARTITIONS)]
    found = observer.committed_offsets(bootstrap, _group(source, job), partitions)
    return sum(offset or 0 for offset, _ in found.values())


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_run_that_is_stopped_leaves_no_process_and_the_next_one_is_exact(
    eos: Eos, bootstrap: str, source: str, stop: signal.Signals, spark: SparkSession, settled: Settled
) -> None:
    from eos.spark.jobs import SparkJob
    from eos.spark.running import run_job
    from eos.spark.write.writer import ShardState

    produce(bootstrap, source, 30)
    command = ("spark", "run", f"{_JOBS}:copying", *_SMALL, "--start", "earliest")
    with eos(*command, TEST_SECONDS_PER_TASK="600") as child:
        child.wait_line("input planned", PATIENCE_S)
        children = psutil.Process(child.pid).children(recursive=True)
        assert any("java" in process.name() for process in children)
        child.signal(stop)
        ended(child, 130 if stop == signal.SIGINT else 143)
        assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []

    job = SparkJob(
        name="copying",
        inputs=[source],
        outputs=[f"{source}.copies"],
        transform=lambda frame: frame.select("shard", "key", "value"),
    )
    result = run_job(job, spark, settled(group=source))
    assert result.count(ShardState.COMMITTED) == _PARTITIONS
    assert_exact(bootstrap, source, 30)


@pytest.mark.slow
def test_script_that_is_submitted_ends_with_the_same_codes(
    bootstrap: str, source: str, submitted: Eos
) -> None:
    produce(bootstrap, source, 30)
    with submitted() as child:
        said = ended(child, ExitCode.CONFIGURATION)
        assert "--start earliest" in said
        assert "see docs/guides/faq.md#has-no-committed-offsets-for" in said
    with submitted("--start", "earliest") as child:
        shown = ended(child, ExitCode.DONE)
    assert "run done: 3 committed; 30 records written" in shown
    assert_exact(bootstrap, source, 30)


@pytest.mark.slow
def test_stream_that_is_submitted_says_what_to_adopt_and_takes_it(
    bootstrap: str, source: str, submitted: Eos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(bootstrap, source, 60)
    monkeypatch.setenv("TEST_STREAM", "1")
    first = ("--start", "earliest", "--until-caught-up")
    with submitted(*first, "--checkpoint", str(tmp_path / "one")) as child:
        ended(child, ExitCode.DONE)
    second = ("--until-caught-up", "--start", "latest", "--checkpoint", str(tmp_path / "two"))
    with submitted(*second) as child:
        said = ended(child, ExitCode.CONFIGURATION)
    token = said.partition("--adopt ")[2].partition(" ")[0]
    produce(bootstrap, source, 30, first=60)
    with submitted(*second, "--adopt", token) as child:
        ended(child, ExitCode.DONE)
    values = [record.value for record in observer.read_committed(bootstrap, f"{source}.copies")]
    assert sorted(filter(None, values)) == sorted(b"v%d" % i for i in range(90))


def test_submitted_batches_that_are_stopped_by_their_java_machine_are_exact(
    bootstrap: str, source: str, submitted: Eos
) -> None:
    """The process that gets the signal is not Python's."""
    produce(bootstrap, source, 30)
    with submitted("--start", "earliest", "--every", "0.5") as child:
        child.wait_line("run done: 3 committed; 30 records written; in place, 3 tasks", PATIENCE_S)
        child.wait_line("run done: nothing new", PATIENCE_S)
        child.signal(signal.SIGTERM)
        assert child.wait(PATIENCE_S) != ExitCode.CONFIGURATION, "\n".join(child.lines)
    assert_exact(bootstrap, source, 30)


@pytest.fixture
def submitted(bootstrap: str, source: str, connector_jars: list[Path]) -> Eos:
    """The script of these tests under `spark-submit` of the installed PySpark, its Python this one."""
    env = {"TEST_INPUT": source, "EOS_KAFKA__BOOTSTRAP_SERVERS": bootstrap, "EOS_GROUP": source}
    support = _REPOSITORY / "tests" / "support"
    submit = ["--master", "local[2,4]", "--driver-memory", "1g", "--jars", ",".join(map(str, connector_jars))]
    submit += ["--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"]

    def start(*arguments: str) -> AbstractContextManager[Child]:
        command = [*submit, str(support / "jobs_for_spark_cli.py"), *arguments]
        return running(
            support / "spark_submit.py",
            *command,
            env={"PYSPARK_PYTHON": sys.executable, **env},
            cwd=_REPOSITORY,
        )

    return start


_SHOWS_CONF = """
import sys
from eos.spark.submitted import run_submitted
from eos.spark.session.checks import LAST_POLLS_DROPPED

def show(spark, settings):
    print("conf", *[spark.sparkContext.getConf().get(name) for name in LAST_POLLS_DROPPED], flush=True)

run_submitted("shows", lambda: None, show)
"""


def test_submitted_session_drops_its_last_polls_unless_the_command_line_says_otherwise(
    tmp_path: Path,
) -> None:
    """A --conf of spark-submit was overwritten: a SparkConf made before the JVM is known does not see it."""
    (script := tmp_path / "shows.py").write_text(_SHOWS_CONF)
    given = "spark.kafka.consumer.fetchedData.cache.timeout=3s"
    small = ("--master", "local[1]", "--driver-memory", "512m", "--conf", "spark.ui.enabled=false")
    with running(
        _REPOSITORY / "tests" / "support" / "spark_submit.py",
        *(*small, "--conf", "spark.driver.host=127.0.0.1", "--conf", given, str(script)),
        env={"PYSPARK_PYTHON": sys.executable},
        cwd=_REPOSITORY,
    ) as child:
        shown = ended(child, ExitCode.DONE)
    assert "conf 3s 1s" in shown


@pytest.mark.slow
def test_debug_shows_the_failing_record_and_where_the_transform_raised(
    eos: Eos, bootstrap: str, source: str
) -> None:
    produce(bootstrap, source, 3)
    once = ("--master", "local[1,1]", "--conf", "spark.driver.memory=1g")
    with eos("spark", "run", f"{_JOBS}:refusing", *once, "--start", "earliest", "--debug") as child:
        shown = ended(child, ExitCode.CONFIGURATION)
    lines = shown.splitlines()
    (raised,) = [
        at for at, line in enumerate(lines) if line.startswith("eos.errors.UsageError: the transform raised")
    ]
    before = "\n".join(lines[:raised])
    traceback = before[before.rindex("pyspark.errors.exceptions") :]
    assert "jobs_for_spark_cli.py" in traceback
    assert "invalid literal for int() with base 10: b'v" in traceback
    said = "the transform raised ValueError in a task"
    assert any(json.loads(line)["event"].startswith(said) for line in lines[raised:] if line.startswith("{"))
    assert observer.read_committed(bootstrap, f"{source}.copies") == []


def test_a_query_goes_on_with_what_its_refusals_say_to_pass_once(
    eos: Eos, bootstrap: str, source: str, tmp_path: Path
) -> None:
    produce(bootstrap, source, 30)
    query = ("spark", "run", f"{_JOBS}:streaming", *_SMALL, "--start", "earliest", "--until-caught-up")
    with eos(*query, "--checkpoint", str(tmp_path / "lost")) as child:
        ended(child, ExitCode.DONE)
    another = (*query, "--checkpoint", str(tmp_path / "another"))
    with eos(*another) as child:
        shown = ended(child, ExitCode.CONFIGURATION)
    token = shown.rpartition("adopt='")[2].partition("'")[0]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for deleted in admin.delete_records([TopicPartition(source, 0, 5)]).values():
        deleted.result(PATIENCE_S)
    with eos(*another, "--adopt", token, "--skip-deleted") as child:
        ended(child, ExitCode.DONE)
    deleted_once = {b"v%d" % i for i in range(0, 15, 3)}
    wanted = {b"v%d" % i: 1 if b"v%d" % i in deleted_once else 2 for i in range(30)}
    assert Counter(r.value for r in observer.read_committed(bootstrap, f"{source}.copies")) == wanted

"""`eos` as a process on a real broker: exit codes, signals, and that nothing is lost, doubled or left running.

The command runs from a script like the one that pip writes, in a directory that is not the job's.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from eos.exits import ExitCode
from tests.conftest import NewTopic
from tests.support import jobs_for_tests, observer
from tests.support.observer import PlainRecord, watermarks
from tests.support.own_broker import JARS
from tests.support.patience import PATIENCE_S
from tests.support.processes import Child, running

pytestmark = pytest.mark.broker

_REPOSITORY = Path(__file__).parents[2]
_JOB = "tests.support.jobs_for_tests:copying"
_LIMITED = "tests.support.jobs_for_tests:limited"
_SCRIPT = "import sys\nfrom eos.cli import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
_PARTITIONS = 2

Eos = Callable[..., AbstractContextManager[Child]]


class Workplace:
    """A job's topics and group, of one test alone."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.group = group
        self.outputs = [f"{topic}.copies", f"{topic}.audit"]

    def load(self, count: int, *, first: int = 0) -> None:
        """Produce so many records with few keys."""
        records = [PlainRecord(b"v%d" % i, b"k%d" % (i % 20)) for i in range(first, first + count)]
        observer.produce_plain(self.bootstrap, self.topic, records)

    def committed(self) -> int:
        """Input offsets committed, over all partitions."""
        partitions = [(self.topic, number) for number in range(_PARTITIONS)]
        offsets = observer.committed_offsets(self.bootstrap, self.group, partitions)
        return sum(offset or 0 for offset, _ in offsets.values())

    def wait_committed(self, at_least: int, timeout_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + timeout_s
        while (now := self.committed()) < at_least:
            assert time.monotonic() < deadline, f"committed {now} of {at_least}"
            time.sleep(0.1)

    def assert_exact(self, processed: int) -> None:
        """The output is exactly what so many input records make."""
        comparison = observer.assert_exactly_once(
            self.bootstrap,
            self.group,
            [self.topic],
            self.outputs,
            lambda record: jobs_for_tests.expected(record, self.topic),
        )
        assert comparison.processed == processed


@pytest.fixture
def workplace(bootstrap: str, topic: NewTopic, names: Callable[[str], str]) -> Workplace:
    name = topic("cli", _PARTITIONS)
    observer.create_topics(bootstrap, {f"{name}.copies": 2, f"{name}.audit": 1, f"{name}.dlq": 1})
    return Workplace(bootstrap, name, names("cli-group"))


@pytest.fixture
def eos(workplace: Workplace, tmp_path: Path) -> Eos:
    """Run the command with the workplace's topics, small limits, and JSON logs."""
    script = tmp_path / "eos-script.py"
    script.write_text(_SCRIPT)
    settings = {
        "TEST_INPUT": workplace.topic,
        "EOS_KAFKA__BOOTSTRAP_SERVERS": workplace.bootstrap,
        "EOS_GROUP": workplace.group,
        "EOS_TRANSACTION__TIMEOUT_MS": "10000",
        "EOS_OWNERSHIP__SESSION_TIMEOUT_MS": "6000",
        "EOS_INPUT__FETCH_RECORDS": "100",
    }

    @contextmanager
    def run(*arguments: str, **changes: str) -> Iterator[Child]:
        with running(script, *arguments, env=settings | changes, cwd=_REPOSITORY) as child:
            yield child

    return run


def _by_partition(*numbers: int, topic: str) -> dict[str, str]:
    return {
        "EOS_OWNERSHIP__MODE": "partition",
        "EOS_OWNERSHIP__PARTITIONS": ",".join(f"{topic}:{number}" for number in numbers),
    }


def _workers(parent: Child) -> list[psutil.Process]:
    """The worker processes, and the spare if it is there: multiprocessing has a child for its own resources, too."""
    children = psutil.Process(parent.pid).children()
    return [
        child
        for child in children
        if any(part.startswith("eos ") or "spawn_main" in part for part in child.cmdline())
    ]


def _ended(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=PATIENCE_S)[1]


def _ends_with(child: Child, code: int, timeout_s: float = PATIENCE_S) -> str:
    """Everything the process has printed, after it has ended with this code."""
    assert child.wait(timeout_s) == code, "\n".join(child.lines)
    return "\n".join(child.lines)


def test_a_run_until_caught_up_is_done_and_exact_and_verify_agrees(eos: Eos, workplace: Workplace) -> None:
    workplace.load(5_000)
    with eos("run", _JOB, "--until-caught-up", "--start", "earliest") as child:
        _ends_with(child, ExitCode.DONE)
    workplace.assert_exact(5_000)
    with eos("verify", _JOB) as child:
        shown = _ends_with(child, ExitCode.DONE)
    assert "5,000 expected, 5,000 found" in shown
    observer.produce_plain(workplace.bootstrap, workplace.outputs[0], [b"not from the job"])
    with eos("verify", _JOB) as child:
        shown = _ends_with(child, ExitCode.NOT_EXACTLY_ONCE)
    assert f"unexpected: {workplace.outputs[0]}" in shown


def test_verify_of_a_group_that_has_processed_nothing_does_not_say_exactly_once(
    eos: Eos, workplace: Workplace
) -> None:
    """Nothing compared with nothing is equal: of a mistyped group, too."""
    workplace.load(10)
    with eos("verify", _JOB) as child:
        shown = _ends_with(child, ExitCode.NOT_EXACTLY_ONCE)
    assert "has processed no record" in shown
    assert "yes" not in shown.split()


def test_input_behind_another_writers_open_transaction_ends_a_run_with_its_name(
    eos: Eos, workplace: Workplace, names: Callable[[str], str]
) -> None:
    """Done would be a lie: what is committed behind it was not processed."""
    workplace.load(5)
    name = names("writer")
    writer = Producer({"bootstrap.servers": workplace.bootstrap, "transactional.id": name, "log_level": 0})
    writer.init_transactions(PATIENCE_S)
    writer.begin_transaction()
    writer.produce(workplace.topic, b"open", partition=0)
    writer.flush(PATIENCE_S)
    workplace.load(100, first=5)
    arguments = ("run", _JOB, "--until-caught-up", "--start", "earliest")
    with eos(*arguments, "--set", "input.held_back_deadline_ms=1000") as child:
        shown = _ends_with(child, ExitCode.UNAVAILABLE)
    assert f"{workplace.topic}[0]: " in shown
    assert "offsets are held back. The last stable offset has stood at " in shown
    assert f"are held back by the open transaction of '{name}' (producer id " in shown
    with eos(*arguments) as child:
        workplace.wait_committed(1)
        writer.commit_transaction(PATIENCE_S)
        _ends_with(child, ExitCode.DONE)
    workplace.assert_exact(106)


def test_verify_names_what_holds_input_back_and_complete_asks_for_all_of_it(
    eos: Eos, workplace: Workplace, names: Callable[[str], str]
) -> None:
    workplace.load(200)
    with eos("run", _JOB, "--until-caught-up", "--start", "earliest") as child:
        _ends_with(child, ExitCode.DONE)
    another = names("another")
    producer = Producer({"bootstrap.servers": workplace.bootstrap, "transactional.id": another})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(workplace.topic, b"open", partition=0)
    producer.flush(PATIENCE_S)
    observer.produce_plain(workplace.bootstrap, workplace.topic, [PlainRecord(b"later", b"k", 0)] * 10)
    with eos("verify", _JOB) as child:
        shown = " ".join(_ends_with(child, ExitCode.DONE).split())
    assert "11 offsets of " in shown
    assert another in shown
    assert "for what is committed, yes; but not all of the input is processed" in shown
    with eos("verify", _JOB, "--complete") as child:
        _ends_with(child, ExitCode.UNAVAILABLE)
    producer.abort_transaction(PATIENCE_S)
    with eos("verify", _JOB, "--complete") as child:
        assert "not processed" in _ends_with(child, ExitCode.UNAVAILABLE)
    with eos("run", _JOB, "--until-caught-up") as child:
        _ends_with(child, ExitCode.DONE)
    with eos("verify", _JOB, "--complete") as child:
        assert _ends_with(child, ExitCode.DONE).split()[-1] == "yes"


def test_the_start_policy_has_to_be_said_once(eos: Eos, workplace: Workplace) -> None:
    workplace.load(10)
    with eos("run", _JOB, "--until-caught-up") as child:
        assert "--start earliest" in _ends_with(child, ExitCode.CONFIGURATION)
    with eos("run", _JOB, "--until-caught-up", "--start", "latest") as child:
        _ends_with(child, ExitCode.DONE)
    workplace.load(10, first=10)
    with eos("run", _JOB, "--until-caught-up") as child:
        _ends_with(child, ExitCode.DONE)
    assert len(observer.read_committed(workplace.bootstrap, workplace.outputs[0])) == 10


@pytest.mark.parametrize(
    ("arguments", "changes", "named"),
    [
        ((_JOB,), {"EOS_TRANSACTION__INTERVALL_MS": "5"}, "EOS_TRANSACTION__INTERVAL_MS"),
        (
            (
                _JOB,
                "--set",
                "transaction.timeout_ms=1000000",
                "--set",
                "ownership.max_poll_interval_ms=2000000",
            ),
            {},
            "transaction.max.timeout.ms",
        ),
        ((_JOB,), {"TEST_INPUT": "no-such-topic"}, "no-such-topic"),
        ((_LIMITED, "--set", "job.most=many"), {}, "job.most"),
        (("tests.support.jobs_for_tests:nothing",), {}, "copying, limited"),
    ],
)
def test_what_is_wrong_before_the_start_is_named(
    eos: Eos, arguments: tuple[str, ...], changes: dict[str, str], named: str
) -> None:
    with eos("run", *arguments, **changes) as child:
        shown = _ends_with(child, ExitCode.CONFIGURATION)
    assert named in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    "value", [jobs_for_tests.POISON, jobs_for_tests.POISON_AS_A_FENCE], ids=["ValueError", "FencedError"]
)
def test_a_poison_record_stops_the_job_and_is_named(eos: Eos, workplace: Workplace, value: bytes) -> None:
    workplace.load(20)
    (poison,) = observer.produce_plain(workplace.bootstrap, workplace.topic, [PlainRecord(value, b"k1")])
    with eos("run", _JOB, "--until-caught-up", "--start", "earliest") as child:
        shown = _ends_with(child, ExitCode.POISON)
    assert f"{workplace.topic}[{poison.partition}] offset {poison.offset}" in shown
    assert "Traceback" not in shown
    workplace.assert_exact(workplace.committed())
    with eos("run", _JOB, "--until-caught-up", "--set", "poison.policy=dead-letter") as child:
        _ends_with(child, ExitCode.DONE)
    assert workplace.committed() == 21
    (letter,) = observer.read_committed(workplace.bootstrap, f"{workplace.topic}.dlq")
    assert letter.value == value


def test_the_one_whose_ordinal_runs_twice_says_who_is_in_the_group(eos: Eos, workplace: Workplace) -> None:
    workplace.load(20)
    with eos("run", _JOB, "--start", "earliest") as first:
        workplace.wait_committed(20)
        with eos("run", _JOB) as second:
            second.wait_line("session opened", PATIENCE_S)
            workplace.load(200, first=20)
            shown = _ends_with(first, ExitCode.FENCED)
            workplace.wait_committed(220)
            second.terminate()
            _ends_with(second, ExitCode.DONE)
    assert f"members of the group '{workplace.group}', of which one may be the other owner" in shown
    assert "@ 127.0.0.1" in shown
    workplace.assert_exact(220)


def test_the_one_who_was_replaced_exits_as_fenced(eos: Eos, workplace: Workplace) -> None:
    owned = _by_partition(0, 1, topic=workplace.topic)
    workplace.load(20)
    with eos("run", _JOB, "--start", "earliest", **owned) as first:
        workplace.wait_committed(20)
        with eos("run", _JOB, **owned) as second:
            second.wait_line("session opened", PATIENCE_S)
            workplace.load(200, first=20)  # what the first one finds and cannot commit
            _ends_with(first, ExitCode.FENCED)
            workplace.wait_committed(220)
            second.terminate()
            _ends_with(second, ExitCode.DONE)
    workplace.assert_exact(220)


def test_a_broker_that_is_away_is_unavailable_in_bounded_time(eos: Eos) -> None:
    away = "127.0.0.1:1"
    with eos("run", _JOB, EOS_KAFKA__BOOTSTRAP_SERVERS=away, EOS_TRANSACTION__TIMEOUT_MS="2000") as child:
        shown = _ends_with(child, ExitCode.UNAVAILABLE)
    assert away in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_job_in_order(eos: Eos, workplace: Workplace, number: signal.Signals) -> None:
    workplace.load(3_000)
    with eos("run", _JOB, "--start", "earliest", "--workers", "2", TEST_SECONDS_PER_RECORD="0.02") as child:
        workplace.wait_committed(100)
        workers = _workers(child)
        assert len(workers) >= 2
        child.signal(number)
        _ends_with(child, ExitCode.DONE)
        assert _ended(workers)
    done = workplace.committed()
    assert done < 3_000
    workplace.assert_exact(done)


def test_a_run_that_is_stopped_before_it_has_caught_up_does_not_end_as_done(
    eos: Eos, workplace: Workplace
) -> None:
    workplace.load(3_000)
    with eos(
        "run", _JOB, "--start", "earliest", "--until-caught-up", TEST_SECONDS_PER_RECORD="0.01"
    ) as child:
        workplace.wait_committed(10)
        child.signal(signal.SIGTERM)
        assert child.wait(PATIENCE_S) == 143
    done = workplace.committed()
    assert done < 3_000
    workplace.assert_exact(done)


def test_a_killed_worker_is_replaced_and_the_result_is_exact(eos: Eos, workplace: Workplace) -> None:
    workplace.load(3_000)
    with eos(
        "run", _JOB, "--start", "earliest", "--until-caught-up", TEST_SECONDS_PER_RECORD="0.004"
    ) as child:
        workplace.wait_committed(300)
        (worker,) = _workers(child)
        worker.kill()
        child.wait_line("was killed by signal 9", PATIENCE_S)
        shown = _ends_with(child, ExitCode.DONE)
    assert shown.count("session opened") == 2
    workplace.assert_exact(3_000)


def test_workers_end_when_their_parent_is_killed(eos: Eos, workplace: Workplace) -> None:
    workplace.load(3_000)
    with eos("run", _JOB, "--start", "earliest", "--workers", "2", TEST_SECONDS_PER_RECORD="0.002") as child:
        workplace.wait_committed(100)
        workers = _workers(child)
        assert len(workers) >= 2
        child.kill()
        assert _ended(workers)
    workplace.assert_exact(workplace.committed())


def test_one_port_of_the_parent_serves_metrics_and_health(eos: Eos, workplace: Workplace) -> None:
    import urllib.request

    workplace.load(100)
    with eos("run", _JOB, "--start", "earliest", "--set", "observe.http_port=0") as child:
        workplace.wait_committed(100)
        url = child.wait_line("metrics and health", PATIENCE_S).split("http://")[1].split('"')[0]
        deadline = time.monotonic() + PATIENCE_S
        text = ""
        while "eos_records_in_total" not in text or 'eos_records_in_total{worker="0"} 100' not in text:
            assert time.monotonic() < deadline, text
            time.sleep(0.2)
            text = urllib.request.urlopen(f"http://{url}/metrics", timeout=PATIENCE_S).read().decode()
        for path in ("healthz", "readyz", ""):
            assert urllib.request.urlopen(f"http://{url}/{path}", timeout=PATIENCE_S).status == 200
        status = json.loads(urllib.request.urlopen(f"http://{url}/status.json", timeout=PATIENCE_S).read())
        assert status["app"] == "copying"
        assert [(one["state"], one["restarts"]) for one in status["workers"]] == [("running", 0)]
        assert len(status["partitions"]) == _PARTITIONS
        assert sum(one["committed"] for one in status["partitions"]) == workplace.committed()
        child.terminate()
        _ends_with(child, ExitCode.DONE)


def test_the_ids_of_partitions_are_asked_of_the_cluster(eos: Eos, workplace: Workplace) -> None:
    mine = {"EOS_OWNERSHIP__MODE": "partition", "EOS_OWNERSHIP__INSTANCES": "1", "EOS_ORDINAL": "0"}
    with eos("shard-id", _JOB, **mine) as child:
        _ends_with(child, ExitCode.DONE)
    assert child.lines == [f"copying.{workplace.group}.p.{workplace.topic}.{n}" for n in range(_PARTITIONS)]


@pytest.mark.slow
def test_a_local_kafka_runs_until_it_is_stopped(eos: Eos, tmp_path: Path, bootstrap: str) -> None:
    del bootstrap  # its fixture has fetched the jars
    directory = ("--directory", str(tmp_path / "cluster"))
    jars = {"EOS_LOCAL__JARS": str(JARS)}
    try:
        with eos("local", "start", *directory, **jars) as child:
            _ends_with(child, ExitCode.DONE)
        servers = child.lines[-1]
        with eos("local", "status", *directory) as child:
            shown = _ends_with(child, ExitCode.DONE)
        assert servers in shown
        assert " up " in shown
        with eos("local", "topics", _JOB, *directory) as child:
            _ends_with(child, ExitCode.DONE)
        assert [line.partition(".")[2] for line in child.lines] == ["", "audit", "copies", "dlq"]
        with eos("local", "topics", _JOB, *directory) as child:
            assert _ends_with(child, ExitCode.DONE) == ""
        with eos("local", "topics", "wide:3", "narrow:1", *directory) as child:
            _ends_with(child, ExitCode.DONE)
        assert [len(watermarks(servers, name)) for name in ("wide", "narrow")] == [3, 1]
        with eos("local", "produce", "no-such-topic", "x", *directory) as child:
            assert "eos local topics" in _ends_with(child, ExitCode.CONFIGURATION)
        with eos("shard-id", _JOB, "--local", "--ordinal", "1", EOS_LOCAL__DIRECTORY=directory[1]) as child:
            assert servers in _ends_with(child, ExitCode.DONE)
    finally:
        with eos("local", "stop", *directory) as child:
            _ends_with(child, ExitCode.DONE)
    with eos("local", "status", *directory) as child:
        _ends_with(child, ExitCode.UNAVAILABLE)

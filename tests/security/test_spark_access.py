"""Spark with exactly the printed grants, over SASL_SSL and mutual TLS; and no secret in what Spark writes about itself.

Spark's source is a Java client, and options travel to executors inside of tasks: looked at are the event log, all that
is printed, and the command lines of all processes, the driver's Java machine among them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from eos.exits import ExitCode
from eos.identity import Identity, Kind
from eos.ops.check.grants import Purpose, grants_for
from tests.support import observer
from tests.support.processes import Child, running_module
from tests.support.secured_broker import SecuredBroker
from tests.support.settings import settings_of

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.xdist_group("secured"),
    pytest.mark.timeout(420),
]

_JOBS = "tests.support.jobs_for_spark_cli"
_REPOSITORY = Path(__file__).parents[2]
_END_S = 300.0  # a minute on a quiet machine, most of it the start of Java machines
_RECORDS = 60
_SMALL = ("--master", "local[2,4]", "--conf", "spark.driver.memory=1g")


class Work:
    """Topics, and a group of the same name."""

    def __init__(self, broker: SecuredBroker) -> None:
        self.broker = broker
        self.topic = observer.unique("spark-secured")
        self.output = f"{self.topic}.copies"
        observer.create_topics(broker.plain, {self.topic: 2, self.output: 2})
        observer.produce_plain(broker.plain, self.topic, [b"v%d" % i for i in range(_RECORDS)])

    def job(self, name: str, kind: Kind) -> Identity:
        from eos.spark.jobs import SparkJob, StreamJob

        of = SparkJob if kind is Kind.BATCH else StreamJob
        job = of(name=name, inputs=[self.topic], outputs=[self.output], transform=lambda frame: frame)
        return job.identity(settings_of(group=self.topic))

    def environment(self, login: Mapping[str, Any]) -> dict[str, str]:
        variables = {f"EOS_{name.upper().replace('.', '__')}": str(value) for name, value in login.items()}
        return variables | {
            "EOS_GROUP": self.topic,
            "EOS_TRANSACTION__TIMEOUT_MS": "20000",
            "EOS_LOCAL__JARS": str(_REPOSITORY / ".eos" / "jars"),
            "EOS_OBSERVE__LOG_LEVEL": "debug",
            "TEST_INPUT": self.topic,
        }

    def outputs(self) -> list[bytes]:
        return sorted(one.value or b"" for one in observer.read_committed(self.broker.plain, self.output))


@pytest.fixture
def work(secured: SecuredBroker) -> Work:
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    return Work(secured)


def _watched(child: Child) -> tuple[int, str]:
    """The exit code, and the command lines that all its processes had."""
    seen: set[str] = set()
    process = psutil.Process(child.pid)
    deadline = time.monotonic() + _END_S
    while child.alive and time.monotonic() < deadline:
        try:
            for one in [process, *process.children(recursive=True)]:
                seen.add(" ".join(one.cmdline()))
        except psutil.Error:
            pass
        time.sleep(0.1)
    return child.wait(1.0), "\n".join(seen)


def _written(directory: Path) -> str:
    return "\n".join(path.read_text(errors="replace") for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("transport", ["sasl", "mutual"])
@pytest.mark.parametrize(("name", "kind"), [("copying", Kind.BATCH), ("streaming", Kind.STREAM)])
def test_spark_runs_with_the_printed_grants_alone_and_writes_no_secret(
    work: Work, tmp_path: Path, transport: str, name: str, kind: Kind
) -> None:
    canary = f"S3CR3T-{uuid.uuid4().hex}"
    if transport == "sasl":
        user = work.broker.add_user(f"{work.topic}-user", canary)
        login, principal, secrets = work.broker.sasl(user), user.principal, [canary]
    else:
        made = work.broker.authority.issue(f"{work.topic}-client", password=canary)
        login = work.broker.mutual(made) | {"kafka.ssl_key_password": canary}
        principal = f"User:CN={work.topic}-client"
        secrets = [canary, made.key.read_text().splitlines()[1]]
    work.broker.grant(principal, grants_for(Purpose.RUN, work.job(name, kind)))
    events = tmp_path / "events"
    events.mkdir()
    log_events = {"enabled": "true", "compress": "false", "dir": events.as_uri()}
    logged = [
        word for key, value in log_events.items() for word in ("--conf", f"spark.eventLog.{key}={value}")
    ]
    how = ("--checkpoint", str(tmp_path / "checkpoint")) if kind is Kind.STREAM else ()
    arguments = ("spark", "run", f"{_JOBS}:{name}", *_SMALL, *logged, *how, "--start", "earliest")

    with running_module(
        "eos.cli", "--debug", *arguments, "--until-caught-up", env=work.environment(login)
    ) as child:
        code, lines = _watched(child)
        said = "\n".join(child.lines)
        assert code == ExitCode.DONE, said

    assert work.outputs() == sorted(b"v%d" % i for i in range(_RECORDS))
    # No group of Spark's own is asked for: its source assigns partitions and commits nothing.
    denied = [line for line in work.broker.log().splitlines() if f"Principal = {principal} is Denied" in line]
    assert not [line for line in denied if "Group:" in line]
    written = _written(events)
    assert "SparkListenerApplicationStart" in written
    assert "java" in lines
    for secret in secrets:
        for where in (said, written, lines, _written(tmp_path / "checkpoint")):
            assert secret not in where


@pytest.mark.parametrize("missing", range(4))
def test_a_batch_without_one_grant_stops_and_says_which(work: Work, missing: int) -> None:
    user = work.broker.add_user(f"{work.topic}-user", "password")
    grants = grants_for(Purpose.RUN, work.job("copying", Kind.BATCH))
    gone = grants.pop(missing)
    work.broker.grant(user.principal, grants)
    env = work.environment(work.broker.sasl(user))

    arguments = ("spark", "run", f"{_JOBS}:copying", *_SMALL, "--start", "earliest")
    with running_module("eos.cli", *arguments, env=env) as child:
        assert child.wait(_END_S) == ExitCode.CONFIGURATION
        said = "\n".join(child.lines)

    assert f"{user.principal} is not allowed to" in said
    assert f"on {gone.resource} '{gone.name}" in said
    assert work.outputs() == []

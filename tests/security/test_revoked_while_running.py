"""Access that is taken back while a job works: it ends with the code of a wrong grant, and nothing is lost or torn.

Question: once the grant is back and the job was started again, is the output exactly what the input makes?
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from eos.exits import ExitCode
from eos.job import Job
from eos.ops.check.grants import Grant, Purpose, grants_for
from tests.support import jobs_for_tests, observer
from tests.support.observer import PlainRecord
from tests.support.patience import PATIENCE_S
from tests.support.processes import Child, running_module
from tests.support.secured_broker import SecuredBroker, User
from tests.support.settings import settings_of

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("secured")]

_JOB = "tests.support.jobs_for_tests:copying"
_RECORDS = 1_500
_FEW = 100  # denied requests until then


class Running:
    """The copying job as a process, on topics of its own."""

    def __init__(self, broker: SecuredBroker, directory: Path) -> None:
        self.broker = broker
        self.topic = observer.unique("revoked")
        self.group = f"{self.topic}-group"
        self.user: User = broker.add_user(f"{self.topic}-user", "before")
        topics = {self.topic: 2} | {f"{self.topic}.{of}": 2 for of in ("copies", "audit", "dlq")}
        observer.create_topics(broker.plain, topics)
        self._directory = directory

    def load(self, count: int) -> None:
        records = [PlainRecord(b"v%d" % i, b"k%d" % (i % 20)) for i in range(count)]
        observer.produce_plain(self.broker.plain, self.topic, records)

    @contextmanager
    def eos(self, *arguments: str, seconds_per_record: float = 0) -> Iterator[Child]:
        password = self._directory / "password"
        password.write_text(self.user.password)
        login = {name: str(value) for name, value in self.broker.sasl(self.user).items()}
        del login["kafka.sasl_password"]
        variables = {f"EOS_{name.upper().replace('.', '__')}": value for name, value in login.items()} | {
            "EOS_KAFKA__SASL_PASSWORD_FILE": str(password),
            "EOS_GROUP": self.group,
            "EOS_TRANSACTION__TIMEOUT_MS": "10000",
            "EOS_TRANSACTION__INTERVAL_MS": "100",
            "TEST_INPUT": self.topic,
            "TEST_SECONDS_PER_RECORD": str(seconds_per_record),
        }
        with running_module("eos.cli", "run", _JOB, *arguments, env=variables) as child:
            yield child

    def committed(self) -> int:
        partitions = [(self.topic, number) for number in range(2)]
        offsets = observer.committed_offsets(self.broker.plain, self.group, partitions)
        return sum(offset or 0 for offset, _ in offsets.values())

    def wait_committed(self, at_least: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (now := self.committed()) < at_least:
            assert time.monotonic() < deadline, f"committed {now} of {at_least}"
            time.sleep(0.1)

    def denials(self) -> int:
        return self.broker.log().count(f"Principal = {self.user.principal} is Denied")

    def processed(self) -> int:
        """How many input records are processed, exactly once."""
        return observer.assert_exactly_once(
            self.broker.plain,
            self.group,
            [self.topic],
            [f"{self.topic}.copies", f"{self.topic}.audit"],
            lambda record: jobs_for_tests.expected(record, self.topic),
        ).processed


@pytest.mark.parametrize(
    ("resource", "suffix"),
    [
        ("Topic", ".copies"),
        pytest.param("Topic", "", marks=pytest.mark.slow),
        pytest.param("Group", "", marks=pytest.mark.slow),
        pytest.param("TransactionalId", "", marks=pytest.mark.slow),
    ],
    ids=["output", "input", "group", "transactional-id"],
)
def test_a_grant_that_is_taken_back_ends_the_job_and_nothing_is_lost_or_torn(
    secured: SecuredBroker, tmp_path: Path, resource: str, suffix: str
) -> None:
    work = Running(secured, tmp_path)
    grants = _grants(work)
    wanted = {"Topic": f"{work.topic}{suffix}", "Group": work.group}.get(resource)
    gone = [one for one in grants if one.resource == resource and wanted in (None, one.name)]
    assert len(gone) == 1
    secured.grant(work.user.principal, grants)
    work.load(_RECORDS)

    with work.eos("--start", "earliest", seconds_per_record=0.02) as job:
        work.wait_committed(100)
        secured.revoke(work.user.principal, gone)
        assert job.wait(PATIENCE_S) == ExitCode.CONFIGURATION
        said = "\n".join(job.lines)
    assert f"{work.user.principal} is not allowed to" in said
    assert "eos acl show" in said
    assert work.denials() <= _FEW
    assert 0 < work.processed() < _RECORDS

    secured.grant(work.user.principal, gone)
    with work.eos("--until-caught-up") as job:
        assert job.wait(PATIENCE_S) == ExitCode.DONE
    assert work.processed() == _RECORDS


@pytest.mark.slow
def test_a_login_that_is_refused_when_the_connection_breaks_ends_the_job_and_nothing_is_lost_or_torn(
    secured: SecuredBroker, tmp_path: Path
) -> None:
    work = Running(secured, tmp_path)
    secured.grant(work.user.principal, _grants(work))
    work.load(_RECORDS)

    with work.eos("--start", "earliest", seconds_per_record=0.02) as job:
        work.wait_committed(100)
        secured.add_user(work.user.name, "after")
        secured.cluster.restart_broker(1)  # a connection that stands is not asked again
        assert job.wait(PATIENCE_S) == ExitCode.CONFIGURATION
        said = "\n".join(job.lines)
    assert "kafka.sasl_password" in said
    work.processed()

    work.user = work.user._replace(password="after")  # noqa: S106 - it is nobody's
    with work.eos("--until-caught-up") as job:
        assert job.wait(PATIENCE_S) == ExitCode.DONE
    assert work.processed() == _RECORDS


def _grants(work: Running) -> list[Grant]:
    outputs = [f"{work.topic}.copies", f"{work.topic}.audit"]
    job = Job(
        name=jobs_for_tests.copying.name,
        inputs=[work.topic],
        outputs=outputs,
        dead_letters=f"{work.topic}.dlq",
        transform=lambda _: [],
    )
    return grants_for(Purpose.RUN, job.identity(settings_of(group=work.group)))

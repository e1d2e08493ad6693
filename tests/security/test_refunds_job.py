"""The refunds processor on a secured broker, as an operator sets it up: the printed grants, `eos run`, `eos verify`.

Question: is what `eos acl show` prints, as JSON or as commands of Kafka's own tool, all that an operator has to apply?
"""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from eos.exits import ExitCode
from eos.kafka.topics import delete_topics
from eos.local import QUICK_START
from eos.local.java import find_java
from eos.ops.check.grants import Grant
from jobs import refunds
from jobs.settlements import settlements
from tests.support import observer
from tests.support.observer import PlainRecord
from tests.support.patience import PATIENCE_S
from tests.support.processes import running_module
from tests.support.secured_broker import SecuredBroker, User

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("secured")]

_JOB = "jobs.refunds:job"
_COUNT = 200
_PARTITIONS = 2


@pytest.fixture
def topics(secured: SecuredBroker) -> None:
    """The job's topics, which have the names that it declares, with input; anew for each test."""
    names = sorted(refunds.job.read_topics | refunds.job.written_topics)
    delete_topics({"bootstrap.servers": secured.plain}, names)
    observer.create_topics(secured.plain, dict.fromkeys(names, _PARTITIONS))
    records = [PlainRecord(one.value, one.key) for one in settlements(seed=1, count=_COUNT)]
    observer.produce_plain(secured.plain, refunds.SETTLEMENTS, records)


class Operator:
    """Somebody with an administrator's rights and the command `eos`."""

    def __init__(self, broker: SecuredBroker, directory: Path) -> None:
        self.broker = broker
        self._directory = directory

    def eos(self, *arguments: str, env: Mapping[str, str], code: ExitCode = ExitCode.DONE) -> str:
        with running_module("eos.cli", *arguments, env=env) as child:
            assert child.wait(PATIENCE_S) == code, "\n".join(child.lines)
            return "\n".join(child.lines)

    def login(self, user: User) -> dict[str, str]:
        """The variables of a user, whose password is in a file."""
        password = self._directory / f"{user.name}.password"
        password.write_text(f"{user.password}\n")
        login = {name: str(value) for name, value in self.broker.sasl(user).items()}
        del login["kafka.sasl_password"]
        variables = {f"EOS_{name.upper().replace('.', '__')}": value for name, value in login.items()}
        return variables | {"EOS_KAFKA__SASL_PASSWORD_FILE": str(password)}

    def apply_json(self, user: User, purpose: str, env: Mapping[str, str]) -> None:
        shown = self.eos(*self._acl(user, purpose), "--format", "json", env=env)
        read = json.loads(shown)
        assert {one.pop("principal") for one in read} == {user.principal}
        self.broker.grant(user.principal, [Grant(**one) for one in read])

    def apply_commands(self, user: User, purpose: str, env: Mapping[str, str]) -> None:
        """Run what is printed, with Kafka's tool in the place of kafka-acls.sh."""
        script = self.eos(*self._acl(user, purpose), "--format", "kafka-acls", env=env)
        tool = self._directory / "kafka-acls.sh"
        java = [find_java(), *QUICK_START, "-cp", shlex.quote(self.broker.cluster.classpath)]
        tool.write_text(f'#!/bin/sh\nexec {" ".join(java)} org.apache.kafka.tools.AclCommand "$@"\n')
        tool.chmod(stat.S_IRWXU)
        admin = self._directory / "admin.properties"
        admin.write_text("security.protocol=PLAINTEXT\n")
        path = f"{self._directory}{os.pathsep}{os.environ['PATH']}"
        variables = {"PATH": path, "BOOTSTRAP": self.broker.plain, "ADMIN": str(admin)}
        done = subprocess.run(
            ["sh", "-e"],
            input=script,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def _acl(self, user: User, purpose: str) -> tuple[str, ...]:
        return ("acl", "show", _JOB, "--for", purpose, "--principal", user.principal)


@pytest.mark.parametrize("form", ["json", pytest.param("commands", marks=pytest.mark.slow)])
def test_with_what_is_printed_the_refunds_job_runs_and_an_auditor_proves_it(
    secured: SecuredBroker, topics: None, tmp_path: Path, form: str
) -> None:
    operator = Operator(secured, tmp_path)
    apply = operator.apply_json if form == "json" else operator.apply_commands
    name = f"refunds-{uuid.uuid4().hex[:8]}"
    worker = secured.add_user(f"{name}-worker", "worker's")
    auditor = secured.add_user(f"{name}-auditor", "auditor's")
    group = {"EOS_GROUP": name}
    apply(worker, "run", group)
    apply(auditor, "verify", group)

    run = ("run", _JOB, "--start", "earliest", "--until-caught-up")
    operator.eos(*run, env=operator.login(worker) | group)
    shown = operator.eos("verify", _JOB, env=operator.login(auditor) | group)

    assert "exactly once" in shown
    partitions = [(refunds.SETTLEMENTS, number) for number in range(_PARTITIONS)]
    offsets = observer.committed_offsets(secured.plain, name, partitions)
    assert sum(offset or 0 for offset, _ in offsets.values()) == _COUNT
    assert observer.read_committed(secured.plain, refunds.REFUNDS_EMITTED)
    # The auditor may neither run the job nor disturb it.
    operator.eos(*run, code=ExitCode.CONFIGURATION, env=operator.login(auditor) | group)

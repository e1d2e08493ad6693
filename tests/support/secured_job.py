"""The copying job on a secured broker, run by `eos` in processes of its own, with a user who has the grants of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from eos.job import Job
from eos.ops.check.grants import Purpose, grants_for
from tests.support import jobs_for_tests, observer
from tests.support.patience import PATIENCE_S
from tests.support.processes import Child, running_module
from tests.support.secured_broker import SecuredBroker, User
from tests.support.settings import settings_of

REFERENCE = "tests.support.jobs_for_tests:copying"

Environment = dict[str, str]


class SecuredJob:
    """The copying job, one record of input, and its user."""

    def __init__(self, broker: SecuredBroker, password: str) -> None:
        self.broker = broker
        self.topic = observer.unique("canary")
        self.user: User = broker.add_user(f"{self.topic}-user", password)
        outputs = [f"{self.topic}.copies", f"{self.topic}.audit"]
        dead = f"{self.topic}.dlq"
        observer.create_topics(broker.plain, dict.fromkeys([self.topic, *outputs, dead], 1))
        observer.produce_plain(broker.plain, self.topic, [b"value"])
        job = Job(
            name=jobs_for_tests.copying.name,
            inputs=[self.topic],
            outputs=outputs,
            dead_letters=dead,
            transform=lambda _: [],
        )
        settings = settings_of(group=self.topic)
        broker.grant(self.user.principal, grants_for(Purpose.RUN, job.identity(settings)))

    def environment(self, login: Mapping[str, Any] | None = None, **more: str) -> Environment:
        """Without a login, that of the user without the password."""
        if login is None:
            login = {
                name: value
                for name, value in self.broker.sasl(self.user).items()
                if name != "kafka.sasl_password"
            }
        return {variable(name): str(value) for name, value in login.items()} | {
            "EOS_GROUP": self.topic,
            "EOS_OBSERVE__LOG_LEVEL": "debug",
            "EOS_INPUT__START": "earliest",
            "TEST_INPUT": self.topic,
            **more,
        }


def variable(name: str) -> str:
    """The environment variable of a setting."""
    option = name.removeprefix("kafka.client.")
    if option != name:
        return f"EOS_KAFKA__CLIENT__{option.upper().replace('.', '_')}"
    return f"EOS_{name.upper().replace('.', '__')}"


@contextlib.contextmanager
def eos_process(*arguments: str, env: Mapping[str, str]) -> Iterator[Child]:
    """`eos` with tracebacks; CONFIG names a file of settings."""
    config = ["--config", env["CONFIG"]] if "CONFIG" in env else []
    with running_module("eos.cli", "--debug", *arguments, *config, env=env) as child:
        yield child


def ended(*arguments: str, env: Mapping[str, str]) -> tuple[int, str]:
    """Its exit code, and all that it printed."""
    with eos_process(*arguments, env=env) as child:
        code = child.wait(PATIENCE_S)
        return code, "\n".join(child.lines)

"""One secured broker for the tests of this folder, and a job on it with a user of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eos.events import Event
from eos.job import Job
from eos.ops.check.grants import Grant, Purpose, grants_for
from eos.records import InputRecord, OutputRecord
from eos.runner.worker import run
from eos.settings import Settings
from tests.support import observer
from tests.support.certificates import OPENSSL
from tests.support.exactly_once import Output, SeenRecord
from tests.support.observer import PlainRecord
from tests.support.secured_broker import SecuredBroker, User, secured_broker
from tests.support.settings import settings_of

_REPOSITORY = Path(__file__).parents[2]
_PARTITIONS = 2


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """One secured broker, started once per run."""
    if OPENSSL is None:
        pytest.skip("certificates are made by openssl, which is not on the PATH")
    with secured_broker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


class Workplace:
    """A job with topics, records and a user of its own, who may do nothing yet."""

    def __init__(self, broker: SecuredBroker, name: str, records: int) -> None:
        self.broker = broker
        self.input, self.output = f"{name}.in", f"{name}.out"
        self.job = Job(name=name, inputs=[self.input], outputs=[self.output], transform=self._copy)
        self.user: User = broker.add_user(f"{name}-user", f"{name}-password")
        observer.create_topics(broker.plain, {self.input: _PARTITIONS, self.output: _PARTITIONS})
        values = [PlainRecord(b"v%d" % i, b"k%d" % (i % 7)) for i in range(records)]
        self.records = len(observer.produce_plain(broker.plain, self.input, values))
        self.events: list[Event] = []

    def _copy(self, record: InputRecord) -> list[OutputRecord]:
        return [OutputRecord(self.output, record.value, record.key)]

    def settings(self, login: dict[str, Any] | None = None, **more: Any) -> Settings:
        """Of the user, unless another login is given."""
        own: dict[str, Any] = {
            "input.start": "earliest",
            "transaction.timeout_ms": 60_000,
            "ownership.ordinal": 0,
            "ownership.instances": 1,
        }
        own |= {name.replace("__", "."): value for name, value in more.items()}
        return settings_of(**(login or self.broker.sasl(self.user)) | own)

    def grants(self, purpose: Purpose = Purpose.RUN) -> list[Grant]:
        return grants_for(purpose, self.job.identity(self.settings()))

    def run(self, settings: Settings) -> None:
        """Run the job until it has caught up, in this process."""
        stop = threading.Event()
        run(self.job, settings, stop=stop, until_caught_up=True, listener=self.events.append)

    def assert_all_done(self) -> None:
        """Seen from outside, all input is processed, exactly once."""

        def expected(record: SeenRecord) -> list[Output]:
            return [(self.output, record.key, record.value)]

        found = observer.assert_exactly_once(
            self.broker.plain, self.job.name, [self.input], [self.output], expected
        )
        assert found.processed == self.records

    def assert_nothing_done(self) -> None:
        """Seen from outside, there is no output, and no offset behind the first."""
        assert observer.read_committed(self.broker.plain, self.output) == []
        partitions = [(self.input, number) for number in range(_PARTITIONS)]
        offsets = observer.committed_offsets(self.broker.plain, self.job.name, partitions)
        assert {offset for offset, _ in offsets.values()} <= {None, 0}

    def denials(self, principal: str | None = None) -> int:
        """How often the broker has denied the user something, by its own log."""
        wanted = f"Principal = {principal or self.user.principal} is Denied"
        return self.broker.log().count(wanted)


NewWorkplace = Callable[..., Workplace]


@pytest.fixture
def workplace(secured: SecuredBroker) -> NewWorkplace:
    """A maker of workplaces."""

    def make(records: int = 40) -> Workplace:
        return Workplace(secured, observer.unique("job"), records)

    return make


PROMPT_S = 30.0  # what waits for no deadline: each is 60 s at least


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

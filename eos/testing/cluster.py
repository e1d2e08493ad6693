"""KafkaCluster: a real Kafka for tests, from containers or from processes, behind one interface."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Self

from eos.base.deadline import Deadline
from eos.base.listing import counted
from eos.errors import ConfigError, EosError, UsageError
from eos.job import Declaration, Job
from eos.kafka import topics
from eos.kafka.config import client_config
from eos.kafka.topics import produce_plain
from eos.offsets import OffsetVector
from eos.ops.verifier.logs import LogReader
from eos.records import InputRecord, OutputRecord
from eos.settings import Settings
from eos.testing.backend import Backend
from eos.testing.choice import Choice, Kind, choose
from eos.testing.processes import ProcessKafka
from eos.testing.running import RunningJob

_DEADLINE_S = 60.0
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME = 100  # characters of a topic's name that a test's name may give


class KafkaCluster:
    """One broker, or three with 3 replicas of which 2 must be in sync. Use it as a context manager.

    Brokers have the ids 1, 2, 3. Ports are published on 127.0.0.1 only and hold over restarts. What was
    started ends with the block, and with this process, also if that is killed.

    Args:
        brokers: 1 or 3.
        kind: where brokers run: "docker", "process", or "auto": containers if an engine answers and has the image;
            or what ``eos.testing.choice`` has decided before.
        image: an image with the interface of ``apache/kafka``; see ``eos.testing.choice.IMAGES`` for the default.
        properties: broker properties that override those that suit a test cluster.
        heap_mb: the heap of each broker in MiB; default 512, with three brokers 384.
        jars: for processes, where Kafka's downloaded jars are kept; default ``EOS_LOCAL__JARS``, else ``.eos/jars``
            in the working directory.
        backend: the brokers themselves, ``eos.local.LocalKafka`` for example; nothing is chosen then.

    Raises:
        ConfigError: this machine lacks what was asked for. The message names the fix.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        kind: str | Choice = Kind.AUTO,
        image: str | None = None,
        properties: Mapping[str, str] | None = None,
        heap_mb: int | None = None,
        jars: Path | str | None = None,
        backend: Backend | None = None,
    ) -> None:
        if brokers not in {1, 3}:
            raise ConfigError(f"brokers = {brokers}: a test cluster has 1 broker, or 3")
        if backend is not None:
            self._choice, self._backend = Choice(Kind.PROCESS, None, "given"), backend
        else:
            self._choice = kind if isinstance(kind, Choice) else choose(kind, image)
            if self._choice.image is None:
                self._backend = ProcessKafka(brokers, properties=properties, heap_mb=heap_mb, jars=jars)
            else:
                from eos.testing.containers import ContainerKafka  # slow to import, and an extra

                self._backend = ContainerKafka(
                    self._choice.image, brokers, properties=properties, heap_mb=heap_mb
                )
        self._brokers = brokers
        self._groups: dict[str, str] = {}
        self._paused: set[int] = set()
        self._down: set[int] = set()

    def __repr__(self) -> str:
        return f"KafkaCluster({counted(self._brokers, 'broker')}, {self._choice.kind})"

    def start(self) -> Self:
        """Start it and wait until it serves clients.

        Raises:
            ConfigError: this machine or the image does not allow it. The message names the fix.
            RetriableError: it was not ready in time.
        """
        try:
            self._backend.start()
        except ConfigError as error:
            if self._choice.kind is Kind.PROCESS and self._choice.why.startswith(Kind.AUTO):
                error.add_note(
                    f"Processes were chosen: {self._choice.why}. Containers need no Java here, only an engine that has "
                    "the image"
                )
            raise
        return self

    def stop(self) -> None:
        """End every broker. The records are gone."""
        self._backend.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def kind(self) -> str:
        """Where its brokers run: "docker" or "process"."""
        return str(self._choice.kind)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, also of those that are down."""
        return self._backend.bootstrap_servers

    def settings(
        self, job: Declaration | None = None, overrides: Mapping[str, object] | None = None
    ) -> Settings:
        """Settings for this cluster; a group that has no offsets starts at the earliest.

        Args:
            job: takes the group that ``create_topics(job)`` gave it.
            overrides: by dotted name, ``{"transaction.interval_ms": 50}``. The environment is not read.
        """
        given: dict[str, object] = {
            "kafka.bootstrap_servers": self.bootstrap_servers,
            "input.start": "earliest",
        }
        if job is not None:
            given["group"] = self.group_of(job)
        return Settings.load(overrides=given | dict(overrides or {}), environ={})

    # -- topics and records

    def create_topic(self, name: str, partitions: int = 1) -> str:
        """Create a topic, and wait until each partition has a leader. Returns its name.

        Raises:
            UsageError: it is there already.
            UnavailableError: the cluster did not do it in time.
        """
        if not topics.create_topics(self._client(), {name: partitions}, replicas=self._brokers):
            raise UsageError(
                f"topic {name!r} is there already. Fix: another name, or eos_topic; create_topics(job) makes a "
                "job's topics anew"
            )
        return name

    def create_topics(self, job: Declaration, partitions: int = 1) -> None:
        """Make every topic of a job anew, empty, and let the job begin with a new group.

        So tests that share a job do not see each other's records.
        """
        names = dict.fromkeys((*job.read_topics, *job.written_topics), partitions)
        if there := names.keys() & set(topics.existing_topics(self._client())):
            topics.delete_topics(self._client(), there)
        topics.create_topics(self._client(), names, replicas=self._brokers)
        self._groups[job.name] = unique(job.name)

    def group_of(self, job: Declaration) -> str:
        """The group that a job has here: a new one with each ``create_topics(job)``, else the job's name."""
        return self._groups.get(job.name, job.name)

    def produce(
        self, topic: str, records: Iterable[bytes | OutputRecord], timeout_s: float = _DEADLINE_S
    ) -> int:
        """Produce values (bytes), or whole records, outside of any transaction; returns how many.

        Raises:
            AbortableError: a record was not delivered.
            UsageError: a record names another topic.
        """

        def checked() -> Iterator[OutputRecord]:
            for one in records:
                record = OutputRecord(topic, one) if isinstance(one, bytes) else one
                if record.topic != topic:
                    raise UsageError(f"produce({topic!r}, …): a record is for {record.topic!r}")
                yield record

        return produce_plain(self._client(), checked(), timeout_s=timeout_s)

    def read_committed(self, *names: str, timeout_s: float = _DEADLINE_S) -> list[InputRecord]:
        """All records of topics as a separate read_committed consumer sees them, by partition and offset.

        Waits until no transaction is open: the last stable offset has reached the high watermark.

        Raises:
            UnavailableError: a transaction stays open until the deadline. The message names the partition.
        """
        with self._reader(unique("reader"), timeout_s) as reader:
            found = reader.records(reader.settled(reader.partitions(names)))
            return sorted(found, key=attrgetter("topic", "partition", "offset"))

    def committed(
        self, group: str | Declaration, *names: str, timeout_s: float = _DEADLINE_S
    ) -> OffsetVector:
        """The next offset of each input partition, as the group has committed it; those without are left out.

        Args:
            group: a group, or a job.
            names: the topics; default: the job's inputs, or for a group every topic.
            timeout_s: seconds to wait while a transaction on these offsets is pending.
        """
        if isinstance(group, str):
            wanted, group_id = list(names) or topics.existing_topics(self._client()), group
        else:
            wanted, group_id = list(names or group.inputs), self.group_of(group)
        with self._reader(group_id, timeout_s) as reader:
            found = reader.committed(reader.partitions(wanted)) if wanted else {}
        return OffsetVector({partition: committed.offset for partition, committed in found.items()})

    # -- jobs

    def run(
        self, job: Job, settings: Settings | None = None, *, timeout_s: float = _DEADLINE_S
    ) -> RunningJob:
        """Run a job until it has processed and committed what its input holds at the beginning.

        Raises:
            EosError: what ended it.
            UnavailableError: it has not caught up in time.
        """
        run = RunningJob(job, settings or self.settings(job), until_caught_up=True)
        run.wait(timeout_s)
        return run

    @contextmanager
    def running(
        self, job: Job, settings: Settings | None = None, *, timeout_s: float = _DEADLINE_S
    ) -> Iterator[RunningJob]:
        """Run a job while the block runs: have accidents meanwhile. Leaving the block stops it in order.

        Raises:
            EosError: what ended it.
        """
        run = RunningJob(job, settings or self.settings(job), until_caught_up=False)
        try:
            yield run
        except BaseException:
            with suppress(EosError):  # the block's own error goes on
                run.stop(timeout_s)
            raise
        run.stop(timeout_s)

    # -- accidents

    def kill_broker(self, broker_id: int) -> None:
        """SIGKILL: no controlled shutdown, the log is recovered at the next start."""
        self._backend.kill_broker(broker_id)
        self._is_down(broker_id)

    def stop_broker(self, broker_id: int) -> None:
        """SIGTERM: leaders are moved first."""
        self._backend.stop_broker(broker_id)
        self._is_down(broker_id)

    def pause_broker(self, broker_id: int) -> None:
        """Its connections stay open and it does not answer, as in a long garbage collection or a frozen machine."""
        self._backend.pause_broker(broker_id)
        self._paused.add(broker_id)

    def resume_broker(self, broker_id: int) -> None:
        """End a pause."""
        self._backend.resume_broker(broker_id)
        self._paused.discard(broker_id)

    def restart_broker(self, broker_id: int) -> None:
        """Start a broker at its address again (after stopping it, if it runs) and wait until it serves clients."""
        self._backend.restart_broker(broker_id)
        self._down.discard(broker_id)
        self._paused.discard(broker_id)

    def heal(self) -> None:
        """Resume what is paused and restart what is down; nothing to do costs nothing."""
        for broker_id in sorted(self._paused):
            self.resume_broker(broker_id)
        for broker_id in sorted(self._down):
            self.restart_broker(broker_id)

    # -- inside

    def _is_down(self, broker_id: int) -> None:
        self._down.add(broker_id)
        self._paused.discard(broker_id)

    def _client(self) -> dict[str, object]:
        return client_config(self.settings())

    def _reader(self, group: str, timeout_s: float) -> LogReader:
        return LogReader(self.settings(), group, Deadline(timeout_s))


def unique(name: str) -> str:
    """A name for a topic or group that nothing else has, made from another one."""
    return f"{_NOT_IN_A_NAME.sub('-', name)[:_MAX_NAME].strip('-') or 'test'}-{uuid.uuid4().hex[:8]}"

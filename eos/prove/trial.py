"""Trial: what is tried, and what that has shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from eos.prove.faults import Kind
from eos.prove.gauge import Sample
from eos.prove.history import History
from eos.prove.judge import Verdict
from eos.prove.nemesis import Injected
from eos.verifier.placement import OWN

Progress = Callable[[str, int, int], None]

# What a trial needs to be short, and its processes to be read. What the user gave goes over it.
TRIAL_SETTINGS: dict[str, object] = {
    "transaction.timeout_ms": 10_000,
    "ownership.session_timeout_ms": 6_000,
    "workers.count": 2,
    "workers.max_restarts": 1_000,
    "workers.restart_backoff_ms": 100,
    "observe.http_port": 0,
    "observe.log_format": "json",
    "observe.log_level": "debug",
}
# What one of Spark needs beside, or in place of that: a batch of a partition is one transaction.
SPARK_SETTINGS: dict[str, object] = {
    "transaction.timeout_ms": 20_000,
    "spark.max_records_per_partition": 2_000,
}


@dataclass(frozen=True, kw_only=True)
class OnSpark:
    """What a trial of a job for Spark has to know beside the job that it is judged by.

    Attributes:
        kind: of the job.
        name: of the job, and its group unless the settings name one.
        read: every topic that it reads, snapshots too.
        master: as of `eos spark run`.
        conf: further settings of Spark, as KEY=VALUE.
        jars: of Spark's Kafka connector.
        judge: the reference of the job that it is judged by, if that was named.
    """

    kind: Literal["batch", "stream"]
    name: str
    read: frozenset[str]
    master: str
    conf: Sequence[str]
    jars: Sequence[Path]
    judge: str | None = None

    @property
    def keeps_order(self) -> bool:
        """Whether the outputs have the order of their input: of a batch that applies a loop's transform to each record."""
        return self.kind == "batch" and self.judge is None


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is to be tried.

    Attributes:
        reference: the job, as ``package.module:name``.
        app_dir: where that is imported from.
        options: of every ``eos run`` or ``eos spark run``: its configuration file and assignments.
        command: what is started instead of ``eos run``, by a shell; None for ``eos run``.
        source: what makes the input, if that was named: a function or a file.
        ways: of a kind in it, only these of its ways.
        quiet: the times without a fault, by this factor.
        each: judge after each fault, too: without new input, once the job has caught up.
        seed: of input and faults.
        faults: how many happen; None: as many as fit ``minutes``.
        minutes: how long faults happen; None: until there were as many as ``faults``.
        kinds: which ones.
        brokers: 1 or 3.
        partitions: of each input topic, and of each output topic.
        rate: input records per second.
        directory: where logs and the cluster are kept; new or empty.
        jars: where Kafka's jars are kept.
        topics: of another cluster, that are copied into the input, as TOPIC or TOPIC=INPUT.
        copied: how many of their records at most.
        spark: of a job for Spark; None: it is one for `eos run`, or a program.
    """

    reference: str
    app_dir: Path
    options: Sequence[str]
    seed: int
    faults: int | None
    minutes: float | None
    kinds: Sequence[Kind]
    brokers: int
    partitions: int
    rate: int
    directory: Path
    jars: Path | None = None
    command: str | None = None
    source: str | None = None
    topics: Sequence[str] = ()
    copied: int | None = None
    spark: OnSpark | None = None
    ways: Mapping[Kind, Sequence[str]] = field(default_factory=dict)
    quiet: float = 1.0
    each: bool = False
    partitioner: str = OWN


@dataclass(frozen=True)
class Proof:
    """What a trial has shown.

    Attributes:
        trial: what was tried.
        began: in seconds since the epoch.
        seconds: how long it took, without the start of the cluster.
        injected: every fault, also those that did not happen.
        samples: lag and what was held back, each second.
        history: what the workers were told.
        records: input records fed.
        verdict: the judgement.
        recoveries: per fault, seconds from its end to the next confirmed commit; where each fault is judged, until all input
            was committed and no transaction open any more.
        looks: how often all of the output was compared with the committed offsets before the end.
        ends: how instances ended that were started again: exit codes, each with how often.
    """

    trial: Trial
    began: float
    seconds: float
    injected: Sequence[Injected]
    samples: Sequence[Sample]
    history: History
    records: int
    verdict: Verdict
    recoveries: Sequence[float] = field(default=())
    looks: int = 0
    ends: Mapping[int, int] = field(default_factory=dict)

    @property
    def not_shown(self) -> list[str]:
        """What was to happen and did not, in words: of that the trial shows nothing."""
        wanted, happened = self.trial.faults, self.happened
        found = []
        if wanted is not None and happened.total() < wanted and not self.verdict.against:
            found.append(f"{happened.total()} of {wanted} faults happened")
        last = {one.fault.kind: one for one in self.injected}
        tries = Counter(one.fault.kind for one in self.injected)
        found += [
            f"{kind} did not happen in {tries[kind]} tries ({one.fault}: {one.detail})"
            for kind, one in last.items()
            if not happened[kind]
        ]
        return found or ([] if happened else ["no fault happened"])

    @property
    def exactly_once(self) -> bool:
        """Whether nothing speaks against it, and what was to happen has happened."""
        return self.verdict.exactly_once and not self.not_shown

    @property
    def happened(self) -> Counter[Kind]:
        """Faults that happened, by kind."""
        return Counter(one.fault.kind for one in self.injected if one.happened)

"""Proving: one trial of a job, from an empty cluster to the verdict."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path

from eos.deadline import Deadline
from eos.errors import ConfigError, EosError, UsageError
from eos.job import Job
from eos.kafka.config import client_config
from eos.kafka.topics import create_topics
from eos.local import QUICK_START, LocalKafka
from eos.local.ports import HOST, free_port
from eos.offsets import Partition
from eos.prove.faults import Kind, faults
from eos.prove.feeder import Feeder
from eos.prove.fleet import Fleet, command_of
from eos.prove.gauge import Gauge, Sample
from eos.prove.history import History, read_history
from eos.prove.inputs import Inputs
from eos.prove.judge import Verdict, compared, judge
from eos.prove.nemesis import Injected, Nemesis
from eos.records import OutputRecord
from eos.settings import Settings, is_sensitive
from eos.settings.catalogue import variable_of
from eos.testing.proxy import ApiKey, HoldProxy

Feed = Callable[[int], Iterable["bytes | tuple[bytes | None, bytes | None] | OutputRecord"]]
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
_STARTED_S = 60.0
_HEALED_S = 120.0  # beyond the transaction's timeout
_POLL_S = 0.2
_EXPIRY_S = 15.0  # beyond its timeout, until the coordinator has ended what a program left open at its end
_TAIL_S = 2.0  # input goes on after the last fault, so that what is wrong in front of it is not hidden as the end of it
_SEEN_S = (
    0.5  # input goes on after each fault before it is judged, so that the next commit shows the recovery
)
_STALLED_S = 60.0  # without any progress; KIP-848 gives a dead member's partitions away after 45 s
_NOT_HAPPENED = 10  # faults in a row: then something else is wrong


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is to be tried.

    Attributes:
        reference: the job, as ``package.module:name``.
        app_dir: where that is imported from.
        options: of every ``eos run``: its configuration file and assignments.
        command: what is started instead of ``eos run``, by a shell; None for ``eos run``.
        source: what makes the input, if that was named.
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
    ways: Mapping[Kind, Sequence[str]] = field(default_factory=dict)
    quiet: float = 1.0
    each: bool = False


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

    @property
    def happened(self) -> Counter[Kind]:
        """Faults that happened, by kind."""
        return Counter(one.fault.kind for one in self.injected if one.happened)


def prove(
    trial: Trial, job: Job, settings: Settings, feed: Feed, progress: Progress = lambda *_: None
) -> Proof:
    """Run a job on a cluster of its own, let accidents happen, and judge what it wrote.

    Args:
        trial: what is tried.
        job: what ``trial.reference`` names.
        settings: the job's, without a cluster. `TRIAL_SETTINGS` are part of them.
        feed: makes the input from a seed: values, (key, value) pairs, or records of the input topics.
        progress: called with a stage, how much of it is done, and of how much.

    Raises:
        ConfigError: the machine, the job or the settings do not fit. The message names the fix.
        UnavailableError: the cluster or the job did not start.
    """
    trial.directory.mkdir(parents=True, exist_ok=True)
    if any(trial.directory.iterdir()):
        raise ConfigError(f"{trial.directory} is not empty. Fix: another directory for this proof")
    with ExitStack() as stack:
        progress("starting Kafka", 0, 0)
        cluster, proxies = stack.enter_context(_arena(trial))
        direct = settings.model_copy(
            update={
                "kafka": settings.kafka.model_copy(update={"bootstrap_servers": cluster.bootstrap_servers})
            }
        )
        config = client_config(direct)
        topics = dict.fromkeys((*job.read_topics, *job.written_topics), trial.partitions)
        create_topics(config, topics, replicas=trial.brokers)
        fleet = _fleet(trial, job, settings, proxies)
        stack.callback(fleet.kill)
        gauge = Gauge(direct, settings.group_for(job.name), *_partitions(job, trial.partitions))
        feeder = Feeder(direct, job, feed(trial.seed), trial.rate)
        listed = bool(settings.ownership.partitions)
        inputs = Inputs(direct, settings.group_for(job.name), gauge, feeder.take, can_grow=not listed)
        nemesis = Nemesis(
            cluster,
            proxies,
            fleet,
            inputs,
            config=config,
            transaction_timeout_s=settings.transaction.timeout_s,
        )
        # Of partitions that are given by count, each instance has its own; a program is one process, so there are more of it.
        instances = settings.ownership.instances or 1
        if trial.command is not None and settings.ownership.mode == "group":
            instances = settings.workers.count
        began, began_at = time.time(), time.monotonic()
        for ordinal in range(instances):
            fleet.start(ordinal)
        feeder.start()
        stack.callback(feeder.stop)
        gauge.start()
        stack.callback(gauge.stop)
        progress("starting the job", 0, 0)
        _wait_for_workers(fleet, instances, settings.workers.count, proxies)

        look = _Look(fleet, feeder, gauge, settings, lambda: compared(job, direct, inputs)[1])
        injected, against = _torment(trial, nemesis, fleet, progress, look)
        progress("catching up", 0, 0)
        fleet.wait(_TAIL_S)
        against += feeder.stop()
        caught_up = _drained(gauge, fleet, settings)
        gauge.stop()
        against += [] if caught_up else ["the job did not catch up after the last fault"]
        against += fleet.ended_for_good
        codes = fleet.end(settings.shutdown.grace_s + _STARTED_S)
        if trial.command is None:  # what ends another program is its own affair
            against += [f"an instance ended with exit code {code} after SIGTERM" for code in codes if code]
        progress("judging", 0, 0)
        history = read_history(sorted(trial.directory.glob("instance-*.log")))
        settles_s = settings.transaction.timeout_s + _EXPIRY_S if trial.command is not None else 0.0
        verdict = judge(job, direct, cluster, history, against, inputs=inputs, settles_s=settles_s)
        return Proof(
            trial,
            began,
            time.monotonic() - began_at,
            injected,
            gauge.samples,
            history,
            feeder.records - inputs.aborted,
            verdict,
            look.recoveries if trial.each else _recoveries(injected, history, began),
            len(look.recoveries),
        )


@contextmanager
def _arena(trial: Trial) -> Iterator[tuple[LocalKafka, list[HoldProxy]]]:
    """A cluster that nobody else uses, with a proxy before each broker."""
    ports: list[int] = []
    for _ in range(trial.brokers):
        ports.append(free_port(set(ports)))
    cluster = LocalKafka(
        trial.directory / "kafka", trial.brokers, jars=trial.jars, jvm_options=QUICK_START, proxy_ports=ports
    )
    with ExitStack() as stack:
        stack.enter_context(cluster)
        upstream = cluster.proxied_listeners
        yield cluster, [stack.enter_context(HoldProxy(port, upstream[port])) for port in ports]


def _fleet(trial: Trial, job: Job, settings: Settings, proxies: Sequence[HoldProxy]) -> Fleet:
    servers = ",".join(f"{HOST}:{proxy.port}" for proxy in proxies)
    if trial.command is None:
        command = command_of(trial.reference, _options(trial, settings, servers), trial.app_dir)
        return Fleet(command, trial.directory)
    given: dict[str, object] = {
        "kafka.bootstrap_servers": servers,
        "group": settings.group_for(job.name),
        "input.start": "earliest",
        "workers.count": 1,
    }
    environment = _variables(settings) | {variable_of(name): str(value) for name, value in given.items()}
    return Fleet(["sh", "-c", trial.command], trial.directory, environment, has_workers=False)


def _variables(settings: Settings) -> dict[str, str]:
    """Every setting that was given, but secrets, as a variable: the way in which any program can read them."""
    given = {}
    for one in Settings.described():
        value: object = reduce(getattr, one.name.split("."), settings)
        named = settings.source_of(one.name) and one.name != "ownership.ordinal"  # which EOS_ORDINAL says
        if named and not is_sensitive(one.name) and value is not None:
            text = json.dumps(list(value) if isinstance(value, tuple) else value, default=str)
            given[one.variable] = str(value) if isinstance(value, str | Path) else text
    return given


def _options(trial: Trial, settings: Settings, servers: str) -> list[str]:
    given = {"kafka.bootstrap_servers": servers, **TRIAL_SETTINGS, "workers.count": settings.workers.count}
    named = {option.partition("=")[0] for option in trial.options}
    added = [f"{name}={value}" for name, value in given.items() if name not in named]
    return [*trial.options, "--start", "earliest", *(word for one in added for word in ("--set", one))]


def _partitions(job: Job, count: int) -> tuple[list[Partition], list[Partition]]:
    return (
        [Partition(topic, number) for topic in sorted(job.inputs) for number in range(count)],
        [Partition(topic, number) for topic in sorted(job.written_topics) for number in range(count)],
    )


def _wait_for_workers(fleet: Fleet, instances: int, workers: int, proxies: Sequence[HoldProxy]) -> None:
    def ready() -> bool:
        fleet.keep_up()
        if fleet.has_workers:
            there = len(fleet.workers()) >= instances * workers
        else:  # a program says that it has begun by its first output
            there = any(proxy.requests(ApiKey.PRODUCE) for proxy in proxies)
        return there or bool(fleet.ended_for_good)

    if not Deadline(_STARTED_S).wait_for(ready) or fleet.ended_for_good:
        log = fleet.ended_for_good or [f"it wrote nothing in {_STARTED_S:.0f} s"]
        raise ConfigError(
            f"the job does not run: {log[0]}. Fix: what its log says; try `eos run`, or the program, by itself first"
        )


class _Look:
    """All of the output, compared without new input, once the job has caught up. Keeps how long that took each time."""

    def __init__(
        self, fleet: Fleet, feeder: Feeder, gauge: Gauge, settings: Settings, compare: Callable[[], list[str]]
    ) -> None:
        self.recoveries: list[float] = []
        self._fleet, self._feeder, self._gauge, self._settings = fleet, feeder, gauge, settings
        self._compare = compare

    def __call__(self) -> list[str]:
        began = time.monotonic()
        self._fleet.wait(_SEEN_S)
        with self._feeder.held():
            if not _drained(self._gauge, self._fleet, self._settings):
                return ["the job did not catch up"]
            self.recoveries.append(time.monotonic() - began)
            try:
                return self._compare()
            except EosError as error:
                return [f"it could not be judged: {error}"]


def _torment(
    trial: Trial, nemesis: Nemesis, fleet: Fleet, progress: Progress, look: _Look
) -> tuple[list[Injected], list[str]]:
    """Faults and quiet in turn, until a look finds something; a fault that does not happen is not counted."""
    injected: list[Injected] = []
    happened = in_vain = 0
    over = Deadline((trial.minutes or 0) * 60)
    for fault in faults(trial.seed, trial.kinds, trial.ways, quiet=trial.quiet):
        if (trial.faults is not None and happened >= trial.faults) or (trial.faults is None and over.passed):
            return injected, []
        progress(str(fault), happened, trial.faults or 0)
        fleet.wait(fault.quiet_s)
        if not fleet.instances:
            return injected, []
        injected.append(nemesis.inject(fault))
        happened += injected[-1].happened
        in_vain = 0 if injected[-1].happened else in_vain + 1
        if in_vain >= _NOT_HAPPENED:
            raise UsageError(
                f"{in_vain} faults in a row did not happen ({injected[-1].fault}: {injected[-1].detail}): the job does not "
                f"write. Fix: look at its log in {trial.directory}"
            )
        if trial.each and injected[-1].happened and (found := look()):
            return injected, [f"after fault {fault.number} ({fault}): {one}" for one in found]
    return injected, []


def _drained(gauge: Gauge, fleet: Fleet, settings: Settings) -> bool:
    deadline = Deadline(settings.transaction.timeout_s + _HEALED_S)
    moved, was = Deadline(_STALLED_S), 0
    while not deadline.passed and not moved.passed and fleet.instances:
        fleet.keep_up()
        try:
            now = gauge.look()
        except EosError:  # no answer
            continue
        if not now.left:
            return True
        if now.left != was:
            moved, was = Deadline(_STALLED_S), now.left
        time.sleep(_POLL_S)
    return False


def _recoveries(injected: Sequence[Injected], history: History, began: float) -> list[float]:
    """Seconds from a fault's end to the next confirmed commit of any worker."""
    commits = [one.at - began for one in history.ended if one.outcome == "committed"]
    ends = [one.ended_s for one in injected if one.happened]
    after = [(end, next((at for at in commits if at >= end), None)) for end in ends]
    return [at - end for end, at in after if at is not None]

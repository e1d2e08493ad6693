"""Proving: one trial of a job, from an empty cluster to the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from eos.deadline import Deadline
from eos.errors import ConfigError, EosError
from eos.job import Job
from eos.kafka.config import client_config
from eos.offsets import Partition
from eos.prove.arena import arena
from eos.prove.catching_up import CatchingUp, Pace
from eos.prove.coordinators import Coordinators
from eos.prove.faults import Kind, faults
from eos.prove.feeding import Feed, Feeder
from eos.prove.fleet import Fleet
from eos.prove.gauge import Gauge
from eos.prove.groups import groups_of, ledger_of, offsets_group
from eos.prove.history import History, read_history
from eos.prove.inputs import DELETING, GROWING, WAYS, Inputs
from eos.prove.judge import compared, judge
from eos.prove.launch import fleet_of
from eos.prove.nemesis import Injected, Nemesis
from eos.prove.spark_fleet import SPARK_ENDS
from eos.prove.trial import Progress, Proof, Trial
from eos.settings import Settings
from eos.testing.proxy import ApiKey, HoldProxy

_STARTED_S = 60.0
_SPARK_S = 300.0  # for the same of Spark: Java machines on a busy machine
_EXPIRY_S = 15.0  # beyond its timeout, until the coordinator has ended what a program left open at its end
_TAIL_S = 2.0  # input goes on after the last fault, so that what is wrong in front of it is not hidden as the end of it
# Input goes on after each fault before it is judged, so that the next commit shows the recovery.
_SEEN_S = 0.5
_TRIES = 3  # of a fault, until it happens
_NOT_HAPPENED = 4  # faults in a row, however often they were tried: then the others would not either


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
        cluster, proxies, direct = place = stack.enter_context(arena(trial, job, settings))
        fleet = fleet_of(trial, job, settings, place.servers)
        stack.callback(fleet.kill)
        group = offsets_group(trial, job, settings)
        gauge = Gauge(direct, group, *_partitions(job, trial.partitions))
        feeder = Feeder(direct, job, feed(trial.seed), trial.rate, Pace(gauge).room)
        inputs = Inputs(direct, group, gauge, feeder.take, feeder.held)
        coordinators = Coordinators(direct, group)
        nemesis = Nemesis(cluster, proxies, fleet, inputs, coordinators, config=client_config(direct))
        # Of partitions that are given by count, each instance has its own; a program is one process, so there are more of it.
        instances = 1 if trial.spark is not None else settings.ownership.instances or 1
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
        order = trial.spark.keeps_order if trial.spark is not None else None
        caught_up = CatchingUp(
            gauge,
            fleet,
            inputs,
            coordinators,
            ledger_of(trial, job, direct),
            timeout_s=settings.transaction.timeout_s,
            own=trial.command is None,
        )
        look = _Look(
            fleet,
            feeder,
            caught_up,
            lambda: compared(job, direct, inputs, group=group, order=order, partitioner=trial.partitioner)[1],
        )
        injected, against = _torment(
            trial, _ways(trial, settings), nemesis, fleet, progress=progress, look=look
        )
        progress("catching up", 0, 0)
        fleet.wait(_TAIL_S)
        against += feeder.stop()
        against += [f"after the last fault: {one}" for one in caught_up()]
        gauge.stop()
        against += fleet.ended_for_good
        codes = fleet.end(settings.shutdown.grace_s + _STARTED_S)
        if trial.command is None:  # what ends another program is its own affair
            wrong = [code for code in codes if code not in ((0,) if trial.spark is None else SPARK_ENDS)]
            against += [f"an instance ended with exit code {code} after SIGTERM" for code in wrong]
        progress("judging", 0, 0)
        history = read_history(sorted(trial.directory.glob("instance-*.log")))
        ends_in_order = trial.command is None and trial.spark is None
        settles_s = 0.0 if ends_in_order else caught_up.timeout_s + _EXPIRY_S
        verdict = judge(
            job,
            direct,
            cluster,
            history,
            against,
            inputs=inputs,
            groups=groups_of(trial, job, settings),
            order=order,
            partitioner=trial.partitioner,
            settles_s=settles_s,
        )
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
            fleet.ends,
        )


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

    started_s = _SPARK_S if fleet.on_spark else _STARTED_S
    if not Deadline(started_s).wait_for(ready) or fleet.ended_for_good:
        log = fleet.ended_for_good or [f"it wrote nothing in {started_s:.0f} s"]
        raise ConfigError(
            f"the job does not run: {log[0]}. Fix: what its log says; try `eos run`, `eos spark run`, or the program, by "
            "itself first"
        )


class _Look:
    """All of the output, compared without new input, once the job has caught up. Keeps how long that took each time."""

    def __init__(
        self,
        fleet: Fleet,
        feeder: Feeder,
        caught_up: Callable[[], list[str]],
        compare: Callable[[], list[str]],
    ) -> None:
        self.recoveries: list[float] = []
        self._fleet, self._feeder = fleet, feeder
        self._caught_up, self._compare = caught_up, compare

    def __call__(self) -> list[str]:
        began = time.monotonic()
        self._fleet.wait(_SEEN_S)
        with self._feeder.held():
            if against := self._caught_up():
                return against
            self.recoveries.append(time.monotonic() - began)
            try:
                return self._compare()
            except EosError as error:
                return [f"it could not be judged: {error}"]


def _ways(trial: Trial, settings: Settings) -> Mapping[Kind, Sequence[str]]:
    """The ways of each kind that can happen to this job."""
    if Kind.INPUT not in trial.kinds:
        return trial.ways
    # Spark may plan a query's last batch once more, from the beginning of that. Partitions that are listed are no more.
    deletes = trial.spark is None or trial.spark.kind == "batch"
    grows = not settings.ownership.partitions
    possible = [
        way
        for way in trial.ways.get(Kind.INPUT, WAYS)
        if (deletes or way not in DELETING) and (grows or way not in GROWING)
    ]
    if not possible:
        raise ConfigError(
            f"--only input/{trial.ways[Kind.INPUT][0]}: it can't happen to this job (a query may plan its last batch once "
            "more, partitions that are listed are no more). Fix: leave it out"
        )
    return {**trial.ways, Kind.INPUT: possible}


def _torment(
    trial: Trial,
    ways: Mapping[Kind, Sequence[str]],
    nemesis: Nemesis,
    fleet: Fleet,
    *,
    progress: Progress,
    look: _Look,
) -> tuple[list[Injected], list[str]]:
    """Faults and quiet in turn, until a look finds something; what does not happen is tried again, and not counted."""
    injected: list[Injected] = []
    happened = in_vain = 0
    over = Deadline((trial.minutes or 0) * 60)
    for fault in faults(trial.seed, trial.kinds, ways, quiet=trial.quiet):
        if (trial.faults is not None and happened >= trial.faults) or (trial.faults is None and over.passed):
            return injected, []
        progress(str(fault), happened, trial.faults or 0)
        fleet.wait(fault.quiet_s)
        for _ in range(_TRIES):
            if not fleet.instances:
                return injected, []
            injected.append(nemesis.inject(fault))
            if injected[-1].happened:
                break
        if not injected[-1].happened:
            in_vain += 1
            if in_vain >= _NOT_HAPPENED:  # the verdict says what has not happened
                return injected, []
            continue
        happened, in_vain = happened + 1, 0
        if trial.each and (found := look()):
            return injected, [f"after fault {fault.number} ({fault}): {one}" for one in found]
    return injected, []


def _recoveries(injected: Sequence[Injected], history: History, began: float) -> list[float]:
    """Seconds from a fault's end to the next confirmed commit of any worker."""
    commits = [one.at - began for one in history.ended if one.outcome == "committed"]
    ends = [one.ended_s for one in injected if one.happened]
    after = [(end, next((at for at in commits if at >= end), None)) for end in ends]
    return [at - end for end, at in after if at is not None]

"""Proving: one trial of a job, from an empty cluster to the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from eos.base.deadline import Deadline
from eos.errors import ConfigError, EosError
from eos.identity import Kind
from eos.job import Declaration
from eos.kafka.config import client_config
from eos.prove.catching_up import CatchingUp
from eos.prove.coordinators import Coordinators
from eos.prove.faults import FaultKind, faults
from eos.prove.fleet import Fleet
from eos.prove.history import History, read_history
from eos.prove.inputs import DELETING, GROWING, WAYS
from eos.prove.job_processes import fleet_of
from eos.prove.judge import judge
from eos.prove.ledgers import shards_behind
from eos.prove.load_generator import Feed
from eos.prove.nemesis import Injected, Nemesis
from eos.prove.source import Source
from eos.prove.trial import Progress, Proof, Trial
from eos.prove.trial_cluster import trial_cluster
from eos.prove.trial_database import TrialDatabase
from eos.prove.tried import Load
from eos.prove.trying import tried
from eos.settings import Settings
from eos.testing.proxy import ApiKey, HoldProxy

_ENDS_S = 60.0  # beyond the grace
_EXPIRY_S = 15.0  # beyond its timeout, until the coordinator has ended what a program left open at its end
_TAIL_S = 2.0  # input goes on after the last fault, so that what is wrong in front of it is not hidden as the end of it
# Input goes on after each fault before it is judged, so that the next commit shows the recovery.
_SEEN_S = 0.5
_TRIES = 3  # of a fault, until it happens
_NOT_HAPPENED = 4  # faults in a row, however often they were tried: then the others would not either


def prove(
    trial: Trial, job: Declaration, settings: Settings, feed: Feed, progress: Progress = lambda *_: None
) -> Proof:
    """Run a job on a cluster of its own, let accidents happen, and judge what it wrote.

    Args:
        trial: what is tried.
        job: what it is judged by: what ``trial.reference`` names, or the loop's job that makes the same.
        settings: the job's, without a cluster. Those of its runtime are part of them.
        feed: makes the input from a seed: values, (key, value) pairs, or records of the input topics.
        progress: called with a stage, how much of it is done, and of how much.

    Raises:
        ConfigError: the machine, the job or the settings do not fit. The message names the fix.
        UnavailableError: the cluster or the job did not start.
    """
    trial.directory.mkdir(parents=True, exist_ok=True)
    if any(trial.directory.iterdir()):
        raise ConfigError(f"{trial.directory} is not empty. Fix: another directory for this proof")
    source = Source(feed(trial.seed), trial.job.inputs or trial.job.outputs)
    with ExitStack() as stack:
        progress("starting Kafka", 0, 0)
        cluster, proxies, direct = place = stack.enter_context(trial_cluster(trial, settings))
        subject = stack.enter_context(tried(trial, job, direct, source))
        fleet = fleet_of(
            trial, settings, place.servers, None if subject.database is None else subject.database.url
        )
        stack.callback(fleet.kill)
        runtime, gauge, load, inputs = trial.runtime, subject.gauge, subject.load, subject.inputs
        coordinators = Coordinators(direct, trial.job.group)
        nemesis = Nemesis(
            cluster,
            proxies,
            fleet,
            inputs,
            coordinators,
            config=client_config(direct),
            database=subject.database,
        )
        instances = runtime.instances(settings)
        began, began_at = time.time(), time.monotonic()
        for ordinal in range(instances):
            fleet.start(ordinal)
        load.start()
        stack.callback(load.stop)
        gauge.start()
        stack.callback(gauge.stop)
        progress("starting the job", 0, 0)
        _wait_for_workers(fleet, instances, settings.workers.count, proxies, subject.database)
        caught_up = CatchingUp(
            gauge,
            fleet,
            inputs,
            coordinators,
            lambda: shards_behind(trial.job, direct),
            timeout_s=settings.transaction.timeout_s,
        )
        look = _Look(fleet, load, caught_up, lambda: subject.compared(lambda _record, _made: None).against)
        injected, against, unfinished = _torment(
            trial, _ways(trial, settings), nemesis, fleet, progress=progress, look=look
        )
        progress("catching up", 0, 0)
        fleet.wait(_TAIL_S)
        unfinished += load.stop()
        unfinished += [f"after the last fault: {one}" for one in caught_up()]
        gauge.stop()
        unfinished += fleet.ended_for_good
        codes = fleet.end(settings.shutdown.grace_s + _ENDS_S)
        wrong = [code for code in codes if runtime.ends and code not in runtime.ends]
        unfinished += [f"an instance ended with exit code {code} after SIGTERM" for code in wrong]
        progress("judging", 0, 0)
        history = read_history(sorted(trial.directory.glob("instance-*.log")))
        settles_s = caught_up.timeout_s + _EXPIRY_S if runtime.leaves_open else 0.0
        verdict = judge(
            job,
            direct,
            cluster,
            history,
            compare=subject.compared,
            against=against,
            unfinished=unfinished,
            groups=trial.job.commits,
            places=subject.places,
            by_origin=runtime.by_origin,
            settles_s=settles_s,
        )
        return Proof(
            trial,
            began,
            time.monotonic() - began_at,
            injected,
            gauge.samples,
            history,
            subject.fed,
            verdict,
            look.recoveries if trial.each else _recoveries(injected, history, began),
            len(look.recoveries),
            fleet.ends,
        )


def _wait_for_workers(
    fleet: Fleet, instances: int, workers: int, proxies: Sequence[HoldProxy], database: TrialDatabase | None
) -> None:
    def ready() -> bool:
        fleet.keep_up()
        if fleet.runtime.has_workers:
            there = len(fleet.workers()) >= instances * workers
        else:  # a program says that it has begun by its first output
            there = any(proxy.requests(ApiKey.PRODUCE) for proxy in proxies)
            there = there or (database is not None and database.proxy.commits > 0)
        return there or bool(fleet.ended_for_good)

    starts_s = fleet.runtime.starts_s
    if not Deadline(starts_s).wait_for(ready) or fleet.ended_for_good:
        log = fleet.ended_for_good or [f"it wrote nothing in {starts_s:.0f} s"]
        raise ConfigError(
            f"the job does not run: {log[0]}. Fix: what its log says; try `eos run`, `eos spark run`, or the program, by "
            "itself first"
        )


class _Look:
    """All of the output, compared without new input, once the job has caught up. Keeps how long that took each time."""

    def __init__(
        self,
        fleet: Fleet,
        load: Load,
        caught_up: Callable[[], list[str]],
        compare: Callable[[], Sequence[str]],
    ) -> None:
        self.recoveries: list[float] = []
        self._fleet, self._load = fleet, load
        self._caught_up, self._compare = caught_up, compare

    def __call__(self) -> tuple[list[str], list[str]]:
        """What speaks against the job, and what it has not done."""
        began = time.monotonic()
        self._fleet.wait(_SEEN_S)
        with self._load.held():
            if unfinished := self._caught_up():
                return [], unfinished
            self.recoveries.append(time.monotonic() - began)
            try:
                return [*self._compare()], []
            except EosError as error:
                return [], [f"it could not be judged: {error}"]


def _ways(trial: Trial, settings: Settings) -> Mapping[FaultKind, Sequence[str]]:
    """The ways of each kind that can happen to this job."""
    if FaultKind.INPUT not in trial.kinds:
        return trial.ways
    # Spark may plan a query's last batch once more, from the beginning of that. Partitions that are listed are no more.
    deletes = trial.job.kind is not Kind.STREAM
    grows = not settings.ownership.partitions
    possible = [
        way
        for way in trial.ways.get(FaultKind.INPUT, WAYS)
        if (deletes or way not in DELETING)
        and (grows or way not in GROWING)
        and way not in trial.ends.left_out
    ]
    if not possible:
        raise ConfigError(
            f"--only input/{trial.ways[FaultKind.INPUT][0]}: it can't happen to this job (a query may plan its last batch once "
            "more, rows of deleted input would be made by nothing, partitions that are listed are no more). Fix: leave it out"
        )
    return {**trial.ways, FaultKind.INPUT: possible}


def _torment(
    trial: Trial,
    ways: Mapping[FaultKind, Sequence[str]],
    nemesis: Nemesis,
    fleet: Fleet,
    *,
    progress: Progress,
    look: _Look,
) -> tuple[list[Injected], list[str], list[str]]:
    """Faults and quiet in turn, until a look finds something; what does not happen is tried again, and not counted.

    Returns what was injected, what speaks against the job, and what it has not done.
    """
    injected: list[Injected] = []
    happened = in_vain = 0
    over = Deadline((trial.minutes or 0) * 60)
    ends = trial.ends
    drawn = faults(
        trial.seed, trial.kinds, ways, quiet=trial.quiet, requests=ends.requests, errors=ends.errors
    )
    for fault in drawn:
        if (trial.faults is not None and happened >= trial.faults) or (trial.faults is None and over.passed):
            return injected, [], []
        progress(str(fault), happened, trial.faults or 0)
        fleet.wait(fault.quiet_s)
        for _ in range(_TRIES):
            if not fleet.instances:
                return injected, [], []
            injected.append(nemesis.inject(fault))
            if injected[-1].happened:
                break
        if not injected[-1].happened:
            in_vain += 1
            if in_vain >= _NOT_HAPPENED:  # the verdict says what has not happened
                return injected, [], []
            continue
        happened, in_vain = happened + 1, 0
        if trial.each and any(found := look()):
            against, unfinished = (
                [f"after fault {fault.number} ({fault}): {one}" for one in some] for some in found
            )
            return injected, against, unfinished
    return injected, [], []


def _recoveries(injected: Sequence[Injected], history: History, began: float) -> list[float]:
    """Seconds from a fault's end to the next confirmed commit of any worker."""
    commits = [one.at - began for one in history.ended if one.outcome == "committed"]
    ends = [one.ended_s for one in injected if one.happened]
    after = [(end, next((at for at in commits if at >= end), None)) for end in ends]
    return [at - end for end, at in after if at is not None]

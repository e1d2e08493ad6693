"""Trial: what is tried, and what that has shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote

from eos.identity import Identity
from eos.prove.ends import ENDS, Ends
from eos.prove.faults import FaultKind
from eos.prove.gauge import Sample
from eos.prove.history import History
from eos.prove.judge import Verdict
from eos.prove.nemesis import Injected
from eos.prove.runtime import SPARK, Runtime, runtime_of
from eos.prove.trial_options import TrialOptions, words_of

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Trial(TrialOptions):
    """What is to be tried: what was asked for, and what that means for this job.

    Attributes:
        reference: the job, as ``package.module:name``.
        job: what it is.
        app_dir: where that is imported from.
        options: of every ``eos run`` or ``eos spark run``: its configuration file and assignments.
        seed: of input and faults; drawn, where none was asked for.
        kinds: of faults; of one in ``ways``, only these of its ways.
        directory: where logs and the cluster are kept; new or empty.
        jars: where Kafka's jars are kept.
        connector: Spark's jars for Kafka, of a job for it.
    """

    reference: str
    job: Identity
    app_dir: Path
    options: Sequence[str]
    seed: int
    kinds: Sequence[FaultKind]
    directory: Path
    jars: Path | None = None
    connector: Sequence[Path] = ()
    ways: Mapping[FaultKind, Sequence[str]] = field(default_factory=dict)

    @property
    def runtime(self) -> Runtime:
        """How the job is run."""
        return runtime_of(self.command, on_spark=self.job.kind.on_spark)

    @property
    def ends(self) -> Ends:
        """What stands at its ends."""
        return ENDS[self.job.judged_by]

    @property
    def order(self) -> bool | None:
        """Whether the order of the outputs is compared; None: as `eos verify` decides it."""
        if self.no_order:
            return False
        return self.job.keeps_order and self.judge is None if self.runtime is SPARK else None

    @property
    def again(self) -> str:
        """The command that makes the same faults again."""
        only = [one for kind in self.kinds for one in (f"{kind}/{way}" for way in self.ways.get(kind, ()))]
        only += [kind for kind in self.kinds if kind not in self.ways]
        there = [] if self.app_dir == Path.cwd() else ["--app-dir", quote(str(self.app_dir))]
        words = words_of(replace(self, only=",".join(only)))
        return " ".join(["eos prove", self.reference, *map(quote, self.options), *there, *words])


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
        if wanted is not None and happened.total() < wanted and self.verdict.exactly_once:
            found.append(f"{happened.total()} of {wanted} faults happened")
        last = {one.fault.kind: one for one in self.injected}
        tries = Counter(one.fault.kind for one in self.injected)
        found += [
            f"{kind} did not happen in {tries[kind]} tries ({one.fault}: {one.detail})"
            for kind, one in last.items()
            if not happened[kind]
        ]
        if (report := self.verdict.report) is not None and report.empty and self.verdict.exactly_once:
            found.append("the job makes no output of this input (transform, --input)")
        return found or ([] if happened else ["no fault happened"])

    @property
    def not_drawn(self) -> list[FaultKind]:
        """Kinds that could have happened, and of which the seed drew none: they were not tried."""
        drawn = {one.fault.kind for one in self.injected}
        return [kind for kind in self.trial.kinds if kind not in drawn]

    @property
    def exactly_once(self) -> bool:
        """Whether nothing speaks against it, and what was to happen has happened."""
        return self.verdict.exactly_once and not self.not_shown

    @property
    def happened(self) -> Counter[FaultKind]:
        """Faults that happened, by kind."""
        return Counter(one.fault.kind for one in self.injected if one.happened)

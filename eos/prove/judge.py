"""Judge: whether what the job left is exactly once, from outside, and from what its workers were told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from eos.check.transactions import TransactionsView
from eos.deadline import Deadline
from eos.errors import EosError
from eos.job import Job
from eos.local import LocalKafka
from eos.offsets import Partition
from eos.prove import misbehaving, tagged
from eos.prove.audit import Audit, Visible, audit
from eos.prove.history import History
from eos.prove.inputs import Inputs
from eos.prove.log import read_log
from eos.settings import Settings
from eos.verifier.logs import LogReader
from eos.verifier.placement import OWN
from eos.verifier.report import VerificationReport
from eos.verifier.verify import verify

_DEADLINE_S = 600.0
_TAGGED = (tagged.job, misbehaving.job, misbehaving.batch_job)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found.

    Attributes:
        report: the comparison of input and output.
        against: what speaks against exactly-once, in words; empty if nothing does.
        unknown: input offsets whose commit no worker was told of; the offsets show that it happened.
        untold: transactions that were committed, and no worker was told so.
        transactions: those in the cluster's log, by outcome.
    """

    report: VerificationReport | None
    against: tuple[str, ...]
    unknown: int = 0
    untold: int = 0
    transactions: Mapping[str, int] = field(default_factory=dict)

    @property
    def exactly_once(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.against


def judge(
    job: Job,
    settings: Settings,
    cluster: LocalKafka,
    history: History,
    others: Sequence[str],
    *,
    inputs: Inputs,
    groups: Mapping[str, Collection[str]],
    order: bool | None = None,
    partitioner: str = OWN,
    settles_s: float = 0.0,
) -> Verdict:
    """Judge a job that has been stopped, or has caught up.

    Args:
        job: whose transform is applied again.
        settings: those of the job, at the brokers' own addresses.
        cluster: whose log is read.
        history: what its workers were told.
        others: what speaks against it already.
        inputs: what became of the input topics.
        groups: that the job commits to, with the topics of the offsets; the first one's are those of its input.
        order: as of `eos verify`.
        partitioner: as of `eos verify`.
        settles_s: seconds in which a transaction that is open may end.
    """
    against, group = list(others), next(iter(groups))
    try:
        with TransactionsView(settings) as view:  # of any id: the cluster has no other user
            Deadline(settles_s).wait_for(lambda: not view.lingering())
            against += [
                f"transaction of {one.transactional_id} is still {one.state}" for one in view.lingering()
            ]
        report, found = compared(job, settings, inputs, group=group, order=order, partitioner=partitioner)
        audited = _audit(job, settings, cluster, groups)
    except EosError as error:
        return Verdict(None, (*against, f"it could not be judged: {error}"))
    against += found
    if not report.records:
        against.append("no record was processed")
    if not report.complete:
        against.append("not all of the input was processed")
    committed = {one.partition: one.committed for one in report.inputs if one.committed is not None}
    history = history.of(set(job.inputs))  # a query confirms offsets of its ledger too
    against += history.contradictions(committed)
    against += audited.against
    untold = history.untold(audited.commits)
    return Verdict(report, tuple(against), history.settled_unknown(committed), untold, audited.transactions)


def compared(
    job: Job,
    settings: Settings,
    inputs: Inputs,
    *,
    group: str,
    order: bool | None = None,
    partitioner: str = OWN,
) -> tuple[VerificationReport, list[str]]:
    """The comparison of all output with the committed offsets, and what it has found, in words.

    Raises:
        EosError: as `verify`.
    """
    report = verify(
        job,
        settings,
        group=group,
        order=order,
        partitioner=partitioner,
        timeout_s=_DEADLINE_S,
        input_from=inputs.archived,
        archive=inputs.archive,
    )
    differences = [f"{count:,} {kind}" for kind, count in report.differences.items() if count]
    return report, [*differences, *report.problems, *(str(example) for example in report.examples)]


def _audit(job: Job, settings: Settings, cluster: LocalKafka, groups: Mapping[str, Collection[str]]) -> Audit:
    (group, topics), *ledgers = groups.items()
    has_tags = (
        any(job is one for one in _TAGGED) and not ledgers
    )  # a query's transactions divide the outputs of a record
    visible: dict[Partition, list[Visible]] = defaultdict(list)
    with LogReader(settings, group, Deadline(_DEADLINE_S)) as reader:
        for record in reader.records(reader.settled(reader.partitions(job.written_topics))):
            tag = tagged.tag_of(record.value) if has_tags else None
            visible[Partition(record.topic, record.partition)].append(Visible(record.offset, tag))
    log = read_log(cluster, job.written_topics)
    return audit(log, group, topics, job.written_topics, visible, ledgers=dict(ledgers))

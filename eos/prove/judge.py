"""Judge: whether what the job left is exactly once, from outside, and from what its workers were told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from eos.base.deadline import Deadline
from eos.errors import EosError
from eos.job import Declaration
from eos.local import LocalKafka
from eos.offsets import Partition
from eos.ops.check.transactions import TransactionsView
from eos.ops.verifier.logs import LogReader
from eos.ops.verifier.verify import OnMade
from eos.prove import misbehaving, tagged
from eos.prove.audit import Audit, Visible, audit
from eos.prove.compared import Compared
from eos.prove.history import History
from eos.prove.log import read_log
from eos.prove.origins import Origins
from eos.settings import Settings

_DEADLINE_S = 600.0
_TAGGED = (tagged.job, misbehaving.job, misbehaving.batch_job)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found.

    Attributes:
        report: the comparison of input and output; None: there is none.
        against: what speaks against exactly-once, in words; empty if nothing does.
        unfinished: what the job has not done, or could not be asked, in words. It speaks neither for nor against what is done.
        beside: topics that its transactions have written to, and that it does not declare: nothing of them is judged.
        unknown: input offsets whose commit no worker was told of; the offsets show that it happened.
        untold: transactions that were committed, and no worker was told so.
        transactions: those in the cluster's log, by outcome.
    """

    report: Compared | None
    against: tuple[str, ...]
    unknown: int = 0
    untold: int = 0
    transactions: Mapping[str, int] = field(default_factory=dict)
    unfinished: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    @property
    def exactly_once(self) -> bool:
        """Whether nothing speaks against it, and all is done."""
        return not self.against and not self.unfinished


def judge(
    job: Declaration,
    settings: Settings,
    cluster: LocalKafka,
    history: History,
    *,
    compare: Callable[[OnMade], Compared],
    against: Sequence[str],
    unfinished: Sequence[str],
    groups: Mapping[str, Collection[str]],
    places: Collection[str],
    by_origin: bool = True,
    settles_s: float = 0.0,
) -> Verdict:
    """Judge a job that has been stopped, or has caught up.

    Args:
        job: that is judged.
        settings: those of the job, at the brokers' own addresses.
        cluster: whose log is read.
        history: what its workers were told.
        compare: compares all that it wrote.
        against: what speaks against it already.
        unfinished: what is known already not to be done.
        groups: that the job commits to in transactions of Kafka, with the topics of the offsets; the first one's are those of its
            input.
        places: the topics in whose partitions workers say how far they are.
        by_origin: whether each transaction is to have the outputs of the input whose offset it commits.
        settles_s: seconds in which a transaction that is open may end.
    """
    against, unfinished = [*against], [*unfinished]
    try:
        with TransactionsView(settings) as view:  # of any id: the cluster has no other user
            Deadline(settles_s).wait_for(lambda: not view.lingering())
            # Of a job that has ended on the way it is what its last process has left, and goes by its timeout.
            (unfinished or against).extend(
                f"transaction of {one.transactional_id} is still {one.state}" for one in view.lingering()
            )
        origins = Origins()
        report = compare(origins.add)
        audited = Audit(())
        if groups:
            audited = _audit(job, settings, cluster, groups, origins if by_origin else Origins())
    except EosError as error:
        return Verdict(None, tuple(against), unfinished=(*unfinished, f"it could not be judged: {error}"))
    against += report.against
    if not report.records:
        unfinished.append("no record was processed")
    if not report.complete:
        unfinished.append("not all of the input was processed")
    history = history.of(places)  # a query confirms offsets of its ledger too
    against += history.contradictions(report.committed)
    against += audited.against
    untold = history.untold(audited.commits) if places else 0
    unknown = history.settled_unknown(report.committed) if places else 0
    return Verdict(
        report,
        tuple(against),
        unknown,
        untold,
        audited.transactions,
        unfinished=tuple(unfinished),
        beside=audited.beside,
    )


def _audit(
    job: Declaration,
    settings: Settings,
    cluster: LocalKafka,
    groups: Mapping[str, Collection[str]],
    origins: Origins,
) -> Audit:
    (group, topics), *ledgers = groups.items()
    has_tags = (
        any(job is one for one in _TAGGED) and not ledgers
    )  # a query's transactions divide the outputs of a record
    visible: dict[Partition, list[Visible]] = defaultdict(list)
    with LogReader(settings, group, Deadline(_DEADLINE_S)) as reader:
        for record in reader.records(reader.settled(reader.partitions(job.written_topics))):
            tag = tagged.tag_of(record.value) if has_tags else origins.of(record)
            visible[Partition(record.topic, record.partition)].append(Visible(record.offset, tag))
    log = read_log(cluster, job.written_topics)
    return audit(log, group, topics, job.written_topics, visible, ledgers=dict(ledgers))

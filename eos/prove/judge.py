"""Judge: whether what the job left is exactly once, from outside, and from what its workers were told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eos.check.transactions import TransactionsView
from eos.deadline import Deadline
from eos.errors import EosError
from eos.job import Job
from eos.prove.history import History
from eos.settings import Settings
from eos.verifier.report import VerificationReport
from eos.verifier.verify import verify

_DEADLINE_S = 600.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found.

    Attributes:
        report: the comparison of input and output.
        against: what speaks against exactly-once, in words; empty if nothing does.
        unknown: input offsets whose commit no worker was told of; the offsets show that it happened.
    """

    report: VerificationReport | None
    against: tuple[str, ...]
    unknown: int = 0

    @property
    def exactly_once(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.against


def judge(
    job: Job, settings: Settings, history: History, others: Sequence[str], *, settles_s: float = 0.0
) -> Verdict:
    """Judge a job that has been stopped, or has caught up.

    Args:
        job: whose transform is applied again.
        settings: those of the job, at the brokers' own addresses.
        history: what its workers were told.
        others: what speaks against it already.
        settles_s: seconds in which a transaction that is open may end.
    """
    against = list(others)
    try:
        with TransactionsView(settings) as view:  # of any id: nobody else uses the cluster
            Deadline(settles_s).wait_for(lambda: not view.lingering())
            against += [
                f"transaction of {one.transactional_id} is still {one.state}" for one in view.lingering()
            ]
        report = verify(job, settings, deadline_s=_DEADLINE_S)
    except EosError as error:
        return Verdict(None, (*against, f"it could not be judged: {error}"))
    against += [f"{count:,} {kind}" for kind, count in report.differences.items() if count]
    against += report.problems
    against += [str(example) for example in report.examples]
    if not report.records:
        against.append("no record was processed")
    if not report.complete:
        against.append("not all of the input was processed")
    committed = {one.partition: one.committed for one in report.inputs if one.committed is not None}
    against += history.contradictions(committed)
    return Verdict(report, tuple(against), history.settled_unknown(committed))

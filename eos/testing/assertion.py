"""assert_exactly_once: a job's output is exactly what its committed input makes, or the test fails with a report."""

from __future__ import annotations

from eos.job import Job
from eos.ops.verifier.report import VerificationReport
from eos.ops.verifier.verify import verify
from eos.settings import Settings
from eos.testing.cluster import KafkaCluster

_DEADLINE_S = 60.0


class GuaranteeViolated(AssertionError):  # noqa: N818 - as Python's own AssertionError, it says what is so
    """A reader from outside saw output lost, doubled, torn, out of order or in the wrong partition.

    A test runner that gives a failed test a second try can tell it from a test that was too slow.
    """


def assert_exactly_once(
    job: Job,
    where: KafkaCluster | Settings,
    *,
    records: int | None = None,
    timeout_s: float = _DEADLINE_S,
    order: bool | None = None,
    partitioner: str = "murmur2_random",
) -> VerificationReport:
    """Fail unless, for each input partition, committed offset = c ⇔ the output is exactly f(input[0:c]).

    Each output must be in the partition that it names, or that its key's hash chooses, and in order.

    Everything is read from outside, by ``eos.verify``, which shares nothing with the loop but the transform. The job
    has ended, or runs without new input; open transactions are waited for.

    Args:
        job: the job; its transform must be deterministic.
        where: the cluster of the test, or the settings that the job ran with (another group, a poison policy).
        records: how many input records must have been processed; default: at least one, because nothing compared
            with nothing is equal, too.
        timeout_s: seconds for settling and reading.
        order: False where the job orders its outputs itself (a batch function that returns several batches for one
            topic); see ``eos.verify``.
        partitioner: by which the outputs were written; see ``eos.verify``.

    Returns:
        What was compared.

    Raises:
        GuaranteeViolated: the output differs; with the report's figures and the first differences.
        AssertionError: another number of records was processed than ``records``.
        UnavailableError: the output did not settle in time.
        OffsetGapError, ConfigError, UsageError: as ``eos.verify``.
    """
    __tracebackhide__ = True  # pytest shows the test's line
    settings = where.settings(job) if isinstance(where, KafkaCluster) else where
    report = verify(job, settings, timeout_s=timeout_s, order=order, partitioner=partitioner)
    if report.differs:
        raise GuaranteeViolated(f"job {job.name!r} is not exactly-once:\n{_text(report)}")
    if records is None and not report.records:
        raise AssertionError(
            f"job {job.name!r} has processed no record, so nothing was compared (records=0 if that is right):\n"
            f"{_text(report)}"
        )
    if records is not None and report.records != records:
        raise AssertionError(
            f"job {job.name!r} has processed {report.records} records, not {records}:\n{_text(report)}"
        )
    return report


def _text(report: VerificationReport) -> str:
    rows = report.rows()
    width = max(len(what) for what, _ in rows)
    lines = [f"  {what:<{width}}  {figures}" for what, figures in rows]
    return "\n".join([*lines, *(f"  {example}" for example in report.examples)])

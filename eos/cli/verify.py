"""`eos verify`: prove from the outside that a job's output is exactly once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from eos.base.deadline import Deadline
from eos.cli.exit import complain, end_with
from eos.cli.help import command
from eos.cli.options import GivenJobOnCluster, reach
from eos.cli.printing import print_table, say
from eos.errors import ConfigError
from eos.exits import ExitCode
from eos.prove.trial_options import PARTITIONER

if TYPE_CHECKING:
    from eos.offsets import Partition
    from eos.ops.check.held_back import HeldBack
    from eos.ops.verifier.report import VerificationReport
    from eos.sql.outbox_report import OutboxReport
    from eos.sql.tables_report import TablesReport

_DEADLINE_S = 3600.0
_SAID_EVERY_S = 10.0  # where no terminal shows a bar
_STAGES = {
    "state": "waiting until the output is settled",
    "letters": "reading dead letters",
    "input": "reading input",
    "output": "reading output",
    "compare": "comparing",
    "rest": "looking for input that is not processed",
}
# A call of the transform that is not Python's may not be ended from here; then the process is.
_STUCK_S = 15.0
commands = typer.Typer()


@command(
    commands,
    ExitCode.DONE,
    ExitCode.UNEXPECTED,
    ExitCode.CONFIGURATION,
    ExitCode.UNAVAILABLE,
    ExitCode.OFFSET_GAP,
    ExitCode.NOT_EXACTLY_ONCE,
)
def verify(
    *,
    given: GivenJobOnCluster,
    input_from: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC:N=OFFSET", help="Where the group began; may be repeated."),
    ] = None,
    output_from: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC:N=OFFSET", help="The output's end before it began; may be repeated."),
    ] = None,
    grown_from: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC=PARTITIONS",
            help="An output topic's partitions before it was given more; may be repeated.",
        ),
    ] = None,
    partitioner: Annotated[str, PARTITIONER] = "murmur2_random",
    order: Annotated[
        bool | None,
        typer.Option(help="Compare the order. If not given: unless Spark has committed the offsets."),
    ] = None,
    complete: Annotated[
        bool, typer.Option("--complete", help="Fail with 5 unless all input is processed, to its end.")
    ] = False,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", help="Give up after this, whatever is done then: 5.", min=1
        ),
    ] = _DEADLINE_S,
) -> None:
    """Prove from the outside that a job's output is exactly once.

    Reads the input up to the group's committed offsets, applies the transform
    again, and compares with the read_committed output: lost, duplicated, torn,
    unexpected, in the wrong partition, out of order. It only reads, and waits until
    the output is settled. Let the job catch up, or stop it, first.

    It judges what is committed, and says what of the input is not: held back by an
    open transaction, or not processed yet. --complete makes that an error. Where
    the group has processed no record, nothing is compared, and it ends with 7.

    Of a job that writes to tables it compares their rows, by primary key and in the
    columns that the transform names, in one snapshot of the database.

    Of a job that relays an outbox it compares the relayed rows with the records, by
    their contents.

    Where the group did not begin at offset 0, or input or output was deleted since,
    say where to begin on both sides. Where an output topic was given more partitions,
    say how many it had.

    Examples:
      eos verify jobs.refunds:job --config conf/refunds.toml
      eos verify jobs.refunds:job --config conf/refunds.toml --complete
      eos verify jobs.refunds:job --input-from settlements:0=500
    """
    from eos.ops.verifier.placement import require_partitioner

    require_partitioner(partitioner)
    begins = _offsets("--input-from", input_from or ()), _offsets("--output-from", output_from or ())
    grown: dict[str, int] = {}
    for topic, count in map(_grown, grown_from or ()):
        # Of one that was given more twice, any count from the least on is right.
        grown[topic] = min(count, grown.get(topic, count))
    settings, job = given.settings(), given.looping()
    judged_by = job.identity(settings).judged_by
    if judged_by != "topics" and (output_from or grown_from or order is not None):
        raise ConfigError(
            "--output-from, --grown-from and --order are about what a transform writes to topics, and this job has none. Fix: without "
            "them"
        )
    if judged_by == "rows" and input_from:
        raise ConfigError("--input-from is about input topics, and this job reads an outbox. Fix: without it")
    reach(settings)
    from eos.cli.bars import bars

    said, stuck = Deadline(_SAID_EVERY_S), Deadline(timeout_s + _STUCK_S)

    with bars() as update:

        def show(stage: str, done: int, total: int) -> None:
            nonlocal said
            update(_STAGES[stage], done, total)
            if said.passed and not sys.stderr.isatty():
                complain(f"{_STAGES[stage]}: {done:,} of {total:,}" if total > 1 else _STAGES[stage])
                said = Deadline(_SAID_EVERY_S)
            if stuck.passed:
                complain(
                    f"not done before the deadline of {timeout_s:g} s: {_STAGES[stage]}, and a call in it, of the transform for "
                    "example, cannot be interrupted. The process ends here"
                )
                os._exit(ExitCode.UNAVAILABLE)

        report: VerificationReport | TablesReport | OutboxReport
        if judged_by == "topics":
            from eos.ops.verifier import verify as verifying  # only now: it takes longest to load

            report = verifying.verify(
                given.job(),
                settings,
                timeout_s=timeout_s,
                on_progress=show,
                input_from=begins[0],
                output_from=begins[1],
                grown_from=grown,
                partitioner=partitioner,
                order=order,
                on_held_back=_name,
            )
        elif judged_by == "rows":
            from eos.references import load_named
            from eos.sql.outbox_job import OutboxJob
            from eos.sql.verify_outbox import verify_outbox

            report = verify_outbox(
                load_named(given.reference, given.app_dir.absolute(), OutboxJob, "eos.sql.OutboxJob"),
                settings,
                timeout_s=timeout_s,
                on_progress=show,
                on_held_back=_name,
            )
        else:
            from eos.references import load_named
            from eos.sql.job import SqlJob
            from eos.sql.verify import verify_tables

            report = verify_tables(
                load_named(given.reference, given.app_dir.absolute(), SqlJob, "eos.sql.SqlJob"),
                settings,
                timeout_s=timeout_s,
                on_progress=show,
                input_from=begins[0],
            )
    print_table(("", ""), report.rows())
    for example in report.examples:
        say(str(example))
    _end(report, complete=complete)


def _name(one: HeldBack) -> None:
    complain(f"{_STAGES['state']}: {one}")


def _end(report: VerificationReport | TablesReport | OutboxReport, *, complete: bool) -> None:
    if report.differs:
        end_with(ExitCode.NOT_EXACTLY_ONCE)
    if not report.records:
        from eos.ops.verifier.report import nothing_compared

        fix = (
            "Where aborted transactions and markers alone are in the way there is nothing to compare yet; else: an earlier beginning "
            "(--input-from)"
            if report.passed
            else "Fix: run the job first; or name the group that ran it (--set group=…), or an earlier beginning (--input-from)"
        )
        end_with(
            ExitCode.NOT_EXACTLY_ONCE,
            f"{nothing_compared(f'the group {report.group!r}', report.passed)}. {fix}",
        )
    if not report.exactly_once:
        end_with(ExitCode.NOT_EXACTLY_ONCE, f"{report.verdict}. Nothing speaks against it either")
    if complete and not report.complete:
        end_with(
            ExitCode.UNAVAILABLE,
            "not all of the input is processed (above). Fix: end the transaction that holds it back, or wait for "
            "its timeout; let the job catch up (eos run … --until-caught-up); then verify again",
        )


def _offsets(option: str, texts: Iterable[str]) -> dict[Partition, int]:
    from eos.settings.tables import parse_partition

    offsets = {}
    for text in texts:
        partition, _, offset = text.rpartition("=")
        try:
            offsets[parse_partition(partition)] = int(offset)
        except ValueError as error:
            raise ConfigError(
                f"{option} {text!r}: give TOPIC:NUMBER=OFFSET, for example orders:0=500"
            ) from error
    return offsets


def _grown(text: str) -> tuple[str, int]:
    topic, _, count = text.rpartition("=")
    if not topic or not count.isdecimal():
        raise ConfigError(f"--grown-from {text!r}: give TOPIC=PARTITIONS, for example refunds-emitted=4")
    return topic, int(count)

"""`eos run`: run a job's worker processes until they are done or stopped, or one of them fails."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from eos.base.commands import started
from eos.base.deadline import Deadline
from eos.cli.exit import Errors, complain, end_with
from eos.cli.help import command
from eos.cli.options import AdoptOffsets, GivenRun, Start, check_cluster
from eos.errors import EosError
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.identity import Identity
    from eos.job import Looping
    from eos.kafka.group_offsets import Committed
    from eos.offsets import Partition
    from eos.runner.messages import Ending, Plan
    from eos.runner.processes import WorkerProcess
    from eos.settings import Settings

_HELD_BACK_CALL_S = 5.0
_STOPPED = 143  # 128 + SIGTERM, as a shell reports it; 0 would say that all is processed

log = logging.getLogger("eos.cli")

commands = typer.Typer()


@command(commands, *(code for code in ExitCode if code is not ExitCode.NOT_EXACTLY_ONCE))
def run(
    *,
    given: GivenRun,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Processes on this machine (workers.count).")
    ] = None,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="End once all present input is processed.")
    ] = False,
    start: Start = None,
    adopt_offsets: AdoptOffsets = False,
) -> None:
    r"""Run a job: its outputs and input offsets in one transaction.

    Ends on SIGTERM or Ctrl-C (it finishes or aborts the open transaction within
    shutdown.grace_ms), or, with --until-caught-up, at the end that the input had at
    the beginning (the high watermark). What another writer's open transaction holds
    back is waited for (input.held_back_deadline_ms); then it ends with 5, and says
    which transaction it is. Stopped before that end, it ends with 143. A worker that a
    signal ends alone is started again; any other failure ends all workers.

    --start is for the first start of a group, which has no offsets yet. It is applied
    once; do not keep it in a deployment.

    Examples:
      eos run jobs.refunds:job -c conf/refunds.toml --start earliest
      eos run jobs.refunds:job -c conf/refunds.toml --workers 2 --until-caught-up
      EOS_ORDINAL=1 eos run jobs.refunds:job -c conf/refunds.toml
    """
    from eos.runner.processes import prepare_all, started_early

    options = {
        "workers.count": workers,
        "input.start": start,
        "ownership.adopt_offsets": adopt_offsets or None,
    }
    with started_early() as waiting:  # at its imports while this process is at its own, and asks the cluster
        from eos.cli.bars import quiet, shows_bars
        from eos.cli.worker_listener import listen, prepare
        from eos.runner.messages import Plan

        reference, settings = given.reference, given.settings(options)
        with_line = shows_bars(settings)
        theirs = quiet(settings) if with_line else settings
        plan = Plan(reference, given.app_dir.absolute(), theirs, until_caught_up, listen, prepare, started())
        prepare_all(waiting, plan)

        from eos.ops.observe import configure_logs
        from eos.runner.last_look import refuse_moved_since_workers
        from eos.settings.binding import bind

        Errors.in_the_log = configure_logs(settings.observe)
        job = given.looping()
        work, known = bind(job, settings), job.identity(settings)
        left: dict[Partition, Committed] = {}
        check_cluster(job, settings, local=given.local, reference=reference)
        code, caught_up = _supervise(
            plan,
            known,
            settings,
            waiting,
            left,
            with_line=with_line,
            on_held_back=lambda: _name_what_holds_input_back(job, settings),
        )
    if until_caught_up and code is ExitCode.UNAVAILABLE:
        _name_what_holds_input_back(job, settings)
    if code is ExitCode.FENCED:
        from eos.group.rivals import named_rivals

        if said := named_rivals(settings, known.group, own="those of this process"):
            complain(said)
    if code is not ExitCode.DONE:
        end_with(
            code, f"{reference} ended with exit code {int(code)} ({code.name.lower().replace('_', ' ')})"
        )
    if until_caught_up and not (caught_up and refuse_moved_since_workers(work, settings, known.group, left)):
        until = "its offsets were looked at once more" if caught_up else "it had caught up"
        complain(f"{reference} was asked to stop before {until}; a later run goes on")
        raise typer.Exit(_STOPPED)


def _name_what_holds_input_back(job: Looping, settings: Settings) -> None:
    """Say whose transaction it is. A worker knows only that there is one: librdkafka cannot ask for transactions."""
    from eos.kafka.admin import Admin, Mark
    from eos.ops.check.held_back import held_back

    admin = Admin.of(settings)
    try:
        partitions = admin.partitions(job.inputs, _HELD_BACK_CALL_S)
        ends = admin.offsets_at(Mark.HIGH_WATERMARK, partitions, _HELD_BACK_CALL_S)
        lsos = admin.offsets_at(Mark.LAST_STABLE, partitions, _HELD_BACK_CALL_S)
    except EosError:
        return  # the brokers are away: that is why the workers ended
    for one in held_back(settings, lsos, ends, Deadline(_HELD_BACK_CALL_S)):
        complain(str(one))


def _supervise(
    plan: Plan,
    known: Identity,
    settings: Settings,
    waiting: list[WorkerProcess],
    left: dict[Partition, Committed],
    *,
    with_line: bool,
    on_held_back: Callable[[], None],
) -> tuple[ExitCode, bool]:
    """How the workers ended, and whether each of them has done all that it was to do; ``left`` gets what they have left."""
    from eos.cli.run_statistics import moving
    from eos.ops.observe import Aggregator, serve
    from eos.runner.supervisor import Restarted, run_workers

    at_work = {settings.for_worker(index).ordinal for index in range(settings.workers.count)}
    about = {
        "job": plan.job,
        "app": known.app,
        "group": known.group,
        "host": socket.gethostname(),
        "interval_s": settings.transaction.interval_s,
    }
    aggregator = Aggregator(at_work, about=about)
    server = serve(aggregator, settings.observe)
    if server is not None:
        log.info("metrics and health, and a page to look at: %s", server.url)
    shown = moving(aggregator, with_line=with_line, has_end=plan.until_caught_up, on_held_back=on_held_back)
    with server or nullcontext(), shown as show:

        def on_report(ordinal: int, report: object) -> None:
            if isinstance(report, bytes):
                aggregator.take(ordinal, report)
            show()

        def on_restart(restarted: Restarted) -> None:
            aggregator.restarted(
                restarted.ordinal,
                f"ended by signal {restarted.signal} ({signal.strsignal(restarted.signal)})",
            )

        def on_done(ordinal: int, ending: Ending) -> None:
            left.update(ending.left)
            aggregator.done(ordinal)
            at_work.discard(ordinal)

        code = run_workers(plan, on_report=on_report, on_restart=on_restart, on_done=on_done, waiting=waiting)
    return code, not at_work

"""Runtime: what is to be known of each of the three ways in which a job is run, by all that tries and judges it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from eos.prove.faults import FaultKind
from eos.prove.instance import Instance, RunInstance
from eos.prove.spark_instance import SparkInstance
from eos.settings import Settings

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
_JAVA_S = 300.0  # Java machines on a busy machine
_FIX = "Fix: leave it out; kill and pause hit drivers, executors and tasks"


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """What differs.

    Attributes:
        instance: one start of it.
        instances: how many there are, by the job's settings.
        settings: that a trial needs.
        has_workers: an instance has worker processes, which its log names.
        is_eos: it is a program of eos, which commits beyond markers and asks for new partitions itself.
        logs_commits: its logs say what became of each transaction, also where a process was killed.
        by_origin: a transaction has the outputs of the input whose offsets it commits, which a shuffle may bring elsewhere.
        ends: the exit codes that are right after SIGTERM; none: what ends it is its own affair.
        leaves_open: what it has left open at its end goes by the transaction's timeout.
        starts_s: in which it has begun to work.
        stalls_s: without progress, after which it does not get on.
        request_s: in which the next request of a kind comes, where each task opens and a driver that was killed starts a Java
            machine before; None: as the watch finds.
        impossible: kinds of faults that cannot happen to it, and why.
    """

    instance: type[Instance]
    instances: Callable[[Settings], int]
    settings: Mapping[str, object] = field(default_factory=lambda: TRIAL_SETTINGS)
    has_workers: bool = False
    is_eos: bool = True
    logs_commits: bool = False
    by_origin: bool = True
    ends: tuple[int, ...] = ()
    leaves_open: bool = True
    starts_s: float = 60.0
    stalls_s: float = 60.0  # KIP-848 gives a dead member's partitions away after 45 s
    request_s: float | None = None
    impossible: Mapping[FaultKind, str] = field(default_factory=dict)


def _declared(settings: Settings) -> int:
    return settings.ownership.instances or 1  # of partitions that are given by count, each has its own


EOS_RUN = Runtime(
    instance=RunInstance,
    instances=_declared,
    has_workers=True,
    logs_commits=True,
    ends=(0,),
    leaves_open=False,
)
PROGRAM = Runtime(
    instance=Instance,
    # A program is one process, so there are more of it.
    instances=lambda settings: (
        settings.workers.count if settings.ownership.mode == "group" else _declared(settings)
    ),
    is_eos=False,
)
SPARK = Runtime(
    instance=SparkInstance,
    instances=lambda _: 1,
    # A batch of a partition is one transaction.
    settings={
        **TRIAL_SETTINGS,
        "transaction.timeout_ms": 20_000,
        "spark.max_records_per_partition": 2_000,
    },
    by_origin=False,
    ends=(0, 128 + signal.SIGTERM, -signal.SIGTERM),  # in order, or before there was a session
    starts_s=_JAVA_S,
    stalls_s=_JAVA_S,
    request_s=90.0,
    impossible={
        FaultKind.REBALANCE: f"Spark divides the work, and nothing joins a group. {_FIX}",
        FaultKind.ZOMBIE: f"a driver has no ordinal under which another one is started. {_FIX}",
        FaultKind.TERM: f"a driver that is asked to end is killed, in effect. {_FIX}",
    },
)


def runtime_of(command: str | None, *, on_spark: bool) -> Runtime:
    """That of another program, or of a job."""
    return PROGRAM if command is not None else SPARK if on_spark else EOS_RUN

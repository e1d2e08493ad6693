"""What one process of a job does: find its shards, and run a loop over a session of each."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from eos import retry
from eos.calls import Call
from eos.errors import ConfigError, UnavailableError
from eos.events import Listener
from eos.job import BoundTransform, Job
from eos.kafka.admin import Admin, TopicShape
from eos.loop import Loop
from eos.offsets import Partition
from eos.references import load_named
from eos.session import Session
from eos.settings import Settings
from eos.shards import OrdinalShard, PartitionShard, Shard

_METADATA_S = 15.0
_JOIN_POLL_S = 0.2

log = logging.getLogger("eos.worker")


def load_job(reference: str, app_dir: Path) -> Job:
    """The job that ``package.module:name`` names.

    Args:
        reference: where the Job object is.
        app_dir: put in front of sys.path; a console script does not have the working directory there.

    Raises:
        ConfigError: there is no such module or name, or it is no Job.
    """
    return load_named(reference, app_dir, Job, "eos.Job")


def bind(job: Job, settings: Settings) -> BoundTransform:
    """The job's transform, with the job's own settings validated.

    Raises:
        ConfigError: a value of ``[job]`` is wrong, or given to a job that has no settings.
    """
    if job.settings is None:
        if settings.job:
            raise ConfigError(
                f"[job] has {', '.join(sorted(settings.job))}, but job {job.name!r} declares no settings. "
                "Fix: remove them, or Job(settings=…)"
            )
        return job.bound()
    return job.bound(settings.job_settings(job.settings))


def shards_of(job: Job, settings: Settings) -> list[Shard]:
    """The shards that this process owns, by ownership.mode.

    Raises:
        ConfigError: a partition that was given does not exist or is no input of the job.
    """
    group = settings.group_for(job.name)
    ownership = settings.ownership
    if ownership.mode == "group":
        return [OrdinalShard(job.name, group, settings.ordinal)]
    existing = _partitions_of(job, settings)
    given = ownership.owned_partitions
    if unknown := sorted(set(given) - set(existing)):
        raise ConfigError(
            f"ownership.partitions names {', '.join(map(str, unknown))}, which the inputs "
            f"{', '.join(job.inputs)} do not have"
        )
    mine: Sequence[Partition] = given or [
        p for p in existing if p.number % (ownership.instances or 1) == settings.ordinal
    ]
    return [PartitionShard(job.name, group, p) for p in mine]


def _partitions_of(job: Job, settings: Settings) -> list[Partition]:
    admin = Admin(settings.client_config())

    def ask(timeout_s: float) -> dict[str, TopicShape]:
        return admin.topics(job.inputs, timeout_s)

    # In short slices: a connection that is refused is told when the first of them is over.
    shapes = retry.resume(Call.METADATA, ask, deadline=time.monotonic() + _METADATA_S, slice_s=1.0)
    if missing := sorted(set(job.inputs) - set(shapes)):
        raise ConfigError(f"input topics {', '.join(missing)} do not exist. Fix: create them; eos never does")
    return [Partition(topic, number) for topic in job.inputs for number in range(shapes[topic].partitions)]


def run_shards(
    job: Job, settings: Settings, *, stop: threading.Event, until_caught_up: bool, listener: Listener
) -> None:
    """Run a loop for every shard of this process until stopped or caught up.

    One shard runs in the calling thread. Several (partition ownership) run in a thread each; the first
    that fails ends them all.

    Raises:
        EosError: what ended it.
    """
    transform = bind(job, settings)
    if settings.ownership.mode == "group":
        # A cluster that is away or a missing topic is said before an owner is fenced.
        _partitions_of(job, settings)
    loops = [
        Loop(
            transform,
            Session(settings, shard, job.inputs, listener=listener),
            settings,
            stop=stop,
            until_caught_up=until_caught_up,
            listener=listener,
        )
        for shard in shards_of(job, settings)
    ]
    # What was imported until here lives as long as the process: without it each full collection of the
    # garbage collector goes through all of it, in the middle of a transaction.
    gc.collect()
    gc.freeze()
    if not loops:
        log.warning(
            "this instance owns no partition, so it has nothing to do and ends: ownership.instances is %s and its "
            "ordinal %d, and the inputs have fewer partitions",
            settings.ownership.instances,
            settings.ordinal,
        )
    elif len(loops) == 1:
        loops[0].run()
    else:
        _run_in_threads(loops, settings, stop)


def _run_in_threads(loops: Sequence[Loop], settings: Settings, stop: threading.Event) -> None:
    errors: list[BaseException] = []

    def run(loop: Loop) -> None:
        try:
            loop.run()
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=run, args=(loop,), daemon=True) for loop in loops]
    for thread in threads:
        thread.start()
    deadline: float | None = None
    while any(thread.is_alive() for thread in threads):
        if stop.is_set() and deadline is None:
            deadline = time.monotonic() + settings.shutdown.grace_s + _METADATA_S
        if deadline is not None and time.monotonic() > deadline:
            errors.append(UnavailableError("shards did not end within the grace period"))
            break
        for thread in threads:
            thread.join(_JOIN_POLL_S / len(threads))
    if errors:
        raise errors[0]

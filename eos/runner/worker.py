"""What one process of a job does: run a loop over a session of each of its shards."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager

from eos import retry
from eos.core.owner import ShardOwner
from eos.core.pipeline import Pipeline
from eos.crashes.search import Search
from eos.errors import Action, EosError, UnavailableError
from eos.events import Listener, guarded, ignore_event
from eos.faces.surroundings import SURROUNDINGS
from eos.group.topics import known_partitions
from eos.job import Looping, OwnLoops
from eos.kafka.admin import shared_admin
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition
from eos.runner.at_work import AtWork
from eos.runner.last_look import OffsetStoreOf, refuse_moved_since
from eos.runner.loop import Loop
from eos.runner.owned import METADATA_S, AddedPartitions, owned, refuse_too_many
from eos.runner.shard_loops import ShardLoops
from eos.settings import Settings
from eos.settings.binding import bind
from eos.shards import PartitionShard, Shard, shard_prefix
from eos.transform import Applied

_LOOK_EVERY_S = 30.0  # after added input partitions
# More than a fetch and its outputs hold at a time. Python's 700 took 8 % of what a function of one record costs in Python.
_COLLECT_AFTER = 5_000

# Settings, group, the offsets that its owners have left, and their store: as refuse_moved_since.
LastLook = Callable[[Settings, str, Mapping[Partition, Committed], OffsetStoreOf], None]

log = logging.getLogger("eos.runner.worker")


@contextmanager
def _few_collections() -> Iterator[None]:
    """Let Python's garbage collector look at less while the block runs, and less often; the loop calls it at each commit.

    What was imported until here lives as long as the process: without it each full collection goes through all of it, in the
    middle of a transaction. And a fetch makes thousands of objects that are freed without the collector.
    """
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    if 0 < before[0] < _COLLECT_AFTER:  # 0: the caller has switched it off
        gc.set_threshold(_COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def run(
    job: Looping,
    settings: Settings,
    *,
    until_caught_up: bool = False,
    stop: threading.Event | None = None,
    listener: Listener = ignore_event,
) -> None:
    """Run a job in this process, until it is stopped or has caught up.

    >>> eos.run(job, settings, until_caught_up=True)  # doctest: +SKIP

    One process is one instance: ``workers.count`` is for ``eos run``. The shard of a group runs in the calling thread.
    With ``ownership.mode = "partition"`` each partition runs in a thread of its own, and the first that fails ends them
    all; with ``ownership.instances`` those that are added to the input meanwhile are taken up too.

    Args:
        job: what to run.
        settings: how to reach the cluster, ownership, limits; ``input.start`` for the first time.
        until_caught_up: end once the group has committed all that the input held at the beginning.
        stop: set it, from a signal handler or another thread, to end in order.
        listener: called with each event (``eos.events``), from any of the threads.

    Raises:
        ConfigError: a setting, a topic or an offset is not as the job needs it.
        FencedError: another owner has a shard.
        TransformError, RecordRefusedError: a record that no try will take.
        OffsetGapError: input was deleted before it was processed.
        UnavailableError: the cluster did not answer in time.
        EosError: what else ended it; ``eos.ExitCode`` has the meaning of each for a process.
    """
    run_worker(
        job,
        settings,
        until_caught_up=until_caught_up,
        stop=stop or threading.Event(),
        listener=listener,
        last_look=refuse_moved_since,
    )


def run_worker(
    job: Looping,
    settings: Settings,
    *,
    until_caught_up: bool,
    stop: threading.Event,
    listener: Listener,
    last_look: LastLook,
) -> None:
    """As :func:`run`, for one of several processes, whose parent looks last, once all of them are done.

    ``last_look`` is called when this one has caught up, where each partition has an owner of its own.
    """
    listener = guarded(listener)
    try:
        with closing(bind(job, settings)) as work:
            if stop.is_set():  # an owner that opens its shard would fence a successor
                return
            if work.reads_topics:
                _run_over_topics(
                    job,
                    work,
                    settings,
                    until_caught_up=until_caught_up,
                    stop=stop,
                    listener=listener,
                    last_look=last_look,
                )
            else:
                _run_own(job, work, settings, until_caught_up=until_caught_up, stop=stop, listener=listener)
    except EosError as error:
        # What a new transaction may put right: nothing of it is visible, or the next start settles it.
        redone = stop.is_set() and error.action is not Action.STOP
        if not (redone or (isinstance(error, UnavailableError) and error.given_up)):
            raise
        log.warning("asked to stop while the cluster did not answer; a later start goes on: %s", error)


def _run_own(
    job: Looping,
    own: OwnLoops,
    settings: Settings,
    *,
    until_caught_up: bool,
    stop: threading.Event,
    listener: Listener,
) -> None:
    known = job.identity(settings)
    with retry.given_up_when(stop.is_set):
        known_partitions(shared_admin(settings), job.written_topics, timeout_s=METADATA_S)
    shards = own.shards(settings)
    if not shards:
        _warn_of_no_shard(settings, "the job has fewer shards", until_caught_up=until_caught_up)
    loops = ShardLoops(
        lambda shard: own.loop(
            shard, settings, until_caught_up=until_caught_up, stop=stop, listener=listener
        ),
        prefix=shard_prefix(known.app, known.group),
        stop=stop,
        stop_s=settings.shutdown.grace_s + METADATA_S,
        listener=listener,
    )
    # A process without a shard waits, as a spare.
    loops.run(shards, None if shards or until_caught_up else lambda: (), _LOOK_EVERY_S)


def _warn_of_no_shard(settings: Settings, why: str, *, until_caught_up: bool) -> None:
    log.warning(
        "this worker owns nothing: there are %s of them (ownership.instances x workers.count), its number is %d, and %s. It %s",
        settings.ownership.instances or settings.workers.count,
        settings.ordinal,
        why,
        "ends" if until_caught_up else "waits",
    )


def _run_over_topics(
    job: Looping,
    transform: Applied,
    settings: Settings,
    *,
    until_caught_up: bool,
    stop: threading.Event,
    listener: Listener,
    last_look: LastLook,
) -> None:
    known = job.identity(settings)
    surroundings = transform.surroundings(settings) or SURROUNDINGS
    # An unreachable cluster or a missing topic is an error before an owner is fenced, and before a transaction is open. The
    # sessions ask by the same client, which is connected then.
    admin = shared_admin(settings)
    with retry.given_up_when(stop.is_set):
        existing = known_partitions(admin, job.inputs, timeout_s=METADATA_S)
        # Refused here, because librdkafka looks for a missing output for 30 s, with the transaction open.
        known_partitions(admin, job.written_topics, timeout_s=METADATA_S)
    shards = owned(job, settings, existing)
    refuse_too_many(settings, len(shards))

    at_work = AtWork(listener)
    owners: list[ShardOwner] = []

    def loop_of(shard: Shard) -> Loop:
        # A partition that is added needs no start policy: its topic was started before. A topic without any offset now is another.
        its = settings if shard in shards else settings.once_started()
        owner = ShardOwner(
            its,
            app=known.app,
            inputs=job.inputs,
            outputs=job.written_topics,
            partition=shard.partition if isinstance(shard, PartitionShard) else None,
            until_caught_up=until_caught_up,
            stop=stop,
            listener=listener,
            surroundings=surroundings,
        )
        owners.append(owner)
        return Loop(transform, Pipeline(owner, Search), its, at_work, listener=listener)

    by_partition = settings.ownership.mode == "partition"
    if not shards:
        log.warning(
            "this worker owns no partition: there are %s of them (ownership.instances x workers.count), its number is %d, and the "
            "inputs have fewer partitions. It %s",
            settings.ownership.instances,
            settings.ordinal,
            "ends" if until_caught_up else "waits for partitions to be added",
        )
    loops = ShardLoops(
        loop_of,
        prefix=shard_prefix(known.app, known.group),
        stop=stop,
        stop_s=settings.shutdown.grace_s + METADATA_S,
        listener=listener,
    )
    with _few_collections(), at_work:
        if not by_partition:
            loops.run(shards)
            return
        added = AddedPartitions(job, settings, existing)
        if not until_caught_up:
            loops.run(shards, added, _LOOK_EVERY_S)
            return
        # Then those that were added meanwhile, or that the broker which was asked first did not know yet.
        loops.run(shards)
        while not stop.is_set() and (more := added()):
            loops.run(more)
        if not stop.is_set():
            left = {partition: one for owner in owners for partition, one in owner.left.items()}
            with retry.given_up_when(stop.is_set):
                last_look(settings, known.group, left, surroundings.destination.store)

"""Groups: which consumer groups say how far a job is: its own, or the ledger of a streaming query."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from eos.group.committed import committed_offsets, fresh_reader
from eos.job import Job
from eos.offsets import Partition
from eos.prove.trial import Trial
from eos.settings import Settings
from eos.shards import ledger_group

_CALL_S = 3.0


def group_of(trial: Trial, job: Job, settings: Settings) -> str:
    """The job's group."""
    return settings.group_for(_app(trial, job))


def offsets_group(trial: Trial, job: Job, settings: Settings) -> str:
    """The group whose committed offsets are those of the input. A query's are the marks of its ledger's first shard."""
    group = group_of(trial, job, settings)
    return ledger_group(_app(trial, job), group, 0) if _is_stream(trial) else group


def groups_of(trial: Trial, job: Job, settings: Settings) -> Mapping[str, frozenset[str]]:
    """Each group that the job commits to, with the topics of its offsets; first the one of the input's."""
    inputs = frozenset(job.inputs)
    if not _is_stream(trial):
        return {offsets_group(trial, job, settings): inputs}
    group, entries = group_of(trial, job, settings), frozenset(job.written_topics)
    others = {
        ledger_group(_app(trial, job), group, shard): entries
        for shard in range(1, settings.spark.sink_shards)
    }
    return {ledger_group(_app(trial, job), group, 0): inputs | entries, **others}


def ledger_of(trial: Trial, job: Job, settings: Settings) -> Callable[[], int]:
    """A function that says how many shards of a query's last batch are still to be written; 0 of any other job.

    Raises (that function):
        EosError: the cluster did not answer in time.
    """
    if not _is_stream(trial):
        return lambda: 0
    group = group_of(trial, job, settings)
    places = [Partition(topic, 0) for topic in job.written_topics]

    def entry(shard: int) -> int:
        with fresh_reader(settings, ledger_group(_app(trial, job), group, shard), stable=True) as reader:
            stored = committed_offsets(reader, places, timeout_s=_CALL_S)
        return max((one.offset for one in stored.values()), default=0)

    def behind() -> int:
        entries = [entry(shard) for shard in range(settings.spark.sink_shards)]
        return sum(one < max(entries) for one in entries)

    return behind


def _app(trial: Trial, job: Job) -> str:
    return job.name if trial.spark is None else trial.spark.name


def _is_stream(trial: Trial) -> bool:
    return trial.spark is not None and trial.spark.kind == "stream"

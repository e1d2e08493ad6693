"""Identity: what each kind of job says of itself, by which the cluster knows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from eos.cli.options import load_declaration
from eos.errors import ConfigError
from eos.identity import Identity, Kind
from eos.job import Declaration, Job
from eos.ops.check.grants import Purpose, grants_for
from eos.ops.operate.target import target_of
from eos.shards import OrdinalShard, ledger_group
from tests.support.settings import settings_of

LOOP = Job(name="copy", inputs=["b", "a"], outputs=["z", "y"], dead_letters="dead", transform=lambda _: [])


def of_spark(kind: str, **more: object) -> Declaration:
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    import eos.spark

    given = {"name": "copy", "inputs": ["b", "a"], "outputs": ["z", "y"], "transform": lambda frame: frame}
    made: Declaration = getattr(eos.spark, kind)(**given | more)
    return made


def of(job: Declaration, **settings: object) -> Identity:
    return job.identity(settings_of(**{"group": "g.1", **settings}))


def test_a_loop_commits_its_input_to_its_group() -> None:
    found = of(LOOP)
    assert (found.kind, found.app, found.group, found.mode) == (Kind.LOOP, "copy", "g.1", "group")
    assert found.commits == {"g.1": {"a", "b"}}
    assert (found.inputs, found.read, found.outputs) == (("a", "b"), ("a", "b"), ("dead", "y", "z"))
    assert (found.dead_letters, found.ledgers, found.fixed) == ("dead", None, "")
    assert OrdinalShard("copy", "g.1", 3).transactional_id == f"{found.ids}i.3"
    by_partition = {"ownership.mode": "partition", "ownership.ordinal": 0, "ownership.instances": 1}
    assert of(LOOP, **by_partition).mode == "partition"


def test_the_group_is_the_settings_or_the_jobs_name() -> None:
    assert of(LOOP, group=None).group == "copy"


@pytest.mark.parametrize("unit", ["partition", "batch"])
def test_a_batch_commits_its_input_and_not_what_it_reads_beside(unit: str) -> None:
    found = of(of_spark("SparkJob", snapshots=["cards"], commit=unit))
    assert (found.kind, found.mode) == (Kind.BATCH, unit)
    assert found.commits == {"g.1": {"a", "b"}}
    assert (found.inputs, found.read) == (("a", "b"), ("a", "b", "cards"))


def test_a_query_commits_to_its_ledger_alone_and_marks_its_input_in_the_first_shard() -> None:
    found = of(of_spark("StreamJob"), **{"spark.sink_shards": 3})
    ledgers = [ledger_group("copy", "g.1", shard) for shard in range(3)]
    assert (found.kind, found.mode, list(found.commits)) == (Kind.STREAM, "sink", ledgers)
    assert list(found.commits.values()) == [{"a", "b", "y", "z"}, {"y", "z"}, {"y", "z"}]
    assert found.ledger_topic == "z"  # the first that is declared
    assert (found.ledgers, ledgers[0]) == ("g.1.copy.ledger.", "g.1.copy.ledger.0")
    assert "its checkpoint and its ledger" in found.fixed


def test_only_a_batch_that_applies_a_loops_transform_keeps_the_order_on_spark() -> None:
    assert of(LOOP).keeps_order
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    from eos.spark import SparkJob, StreamJob

    assert of(SparkJob.applying(LOOP, name="copy")).keeps_order
    assert not of(of_spark("SparkJob")).keeps_order
    assert not of(StreamJob.applying(LOOP, name="copy")).keeps_order


def test_which_loops_job_says_what_becomes_of_a_record() -> None:
    assert LOOP.applied is LOOP
    assert of_spark("SparkJob").applied is None
    from eos.spark import StreamJob

    assert StreamJob.applying(LOOP, name="copy").applied is LOOP


def test_a_further_kind_is_one_class() -> None:
    """Its readers take what it says: no grant for ids that it does not have, and its own words where it can't be moved."""
    job = load_declaration("tests.support.other_kind:job", Path())
    found = of(job)
    assert found.ids is None
    for purpose in (Purpose.RUN, Purpose.STATUS, Purpose.VERIFY):
        assert not [one for one in grants_for(purpose, found) if one.resource == "TransactionalId"]
    with pytest.raises(ConfigError, match=r"^'inserting' has its place in its database$"):
        target_of(job, settings_of())

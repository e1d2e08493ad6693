"""A topic that changes its part in a query: input, output, or what the ledger stands on. Nothing of the one is read as the other.

In the group of shard 0, the offset of a topic's partition 0 may be an entry or a mark.
"""

from __future__ import annotations

import functools
import json
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import DataFrame

from eos.base.deadline import Deadline
from eos.errors import ConfigError, OffsetGapError, UsageError
from eos.events import ignore_event
from eos.offsets import OffsetVector, Partition
from eos.prove.ledgers import shards_behind
from eos.spark.jobs import StreamJob
from eos.spark.running import start_stream
from eos.spark.source import read_stream
from eos.spark.stream.commit_log import CommitLog
from eos.spark.stream.log_driver import CommitLogDriver
from eos.spark.stream.log_entry import Division, LogEntry
from eos.spark.stream.log_rules import LedgerError
from eos.spark.stream.query import write_stream
from eos.spark.stream.sink import exactly_once_sink
from tests.support.observer import create_topics, delete_topic, read_committed, recreate_topic, unique
from tests.support.patience import PATIENCE_S
from tests.support.settings import settings_of
from tests.support.stream_roles import ROWS, Roles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from eos.settings import Settings

pytestmark = pytest.mark.broker

QUERY, RUN = str(uuid.uuid4()), str(uuid.uuid4())


@pytest.fixture
def roles(spark: SparkSession, settled: Callable[..., Settings], bootstrap: str, tmp_path: Path) -> Roles:
    return Roles(spark, settled(spark__sink_shards=2), bootstrap, tmp_path)


def test_topic_that_the_ledger_stands_on_becomes_an_input_and_the_refusal_says_so(roles: Roles) -> None:
    """Also where there is nothing new, so that Spark plans no batch."""
    source, ledgers, output = roles.source, roles.changing, roles.output
    roles.give(source)
    roles.run([source], [ledgers, output])
    why = f"stands on {ledgers}, and that is an input now.*take it out of the inputs"
    assert not roles.refused([source, ledgers], [output], why)
    roles.give(source)
    assert not roles.refused([source, ledgers], [output], why)
    roles.run([source], [output, ledgers])
    roles.expect()


def test_query_without_new_input_whose_ledger_stands_on_no_output_does_not_end_well(roles: Roles) -> None:
    """Nothing was refreshed or compared then, with exit 0: an input that was created anew counted as processed."""
    source, ledgers, output = roles.source, roles.changing, roles.output
    roles.give(source)
    roles.run([source], [ledgers, output])
    roles.refused([source], [output], f"stands on {ledgers}")
    roles.run([source], [output, ledgers])
    roles.expect()


def test_former_input_that_is_named_as_the_first_output_does_not_pass_for_the_ledgers_topic(
    roles: Roles,
) -> None:
    """Its mark, which has the text of the entry beside it, was read as an entry with its offset as a batch's number."""
    former, source, output = roles.changing, roles.source, roles.output
    roles.give(former)
    roles.run([former], [output])
    roles.give(source)
    roles.run([source], [former, output], skip=True)
    roles.give(source)
    roles.run([source], [former, output])
    roles.expect()


def test_input_that_is_named_no_more_is_refused_before_spark_plans_without_it(roles: Roles) -> None:
    """Spark's plan without it stayed in the checkpoint: the query was told of deleted input, with the topic and without."""
    source, forgotten, output = roles.source, roles.changing, roles.output
    roles.give(source)
    roles.give(forgotten)
    roles.run([source, forgotten], [output])
    roles.give(source)
    with pytest.raises(ConfigError, match=f"has read {forgotten}.*name the same topics as before"):
        roles.run([source], [output])
    roles.run([source, forgotten], [output])
    roles.expect()
    roles.run([source], [output], skip=True)  # a person has decided so
    roles.give(source)
    roles.run([source], [output])
    roles.expect()


def test_input_is_left_out_once_the_batch_that_was_planned_with_it_is_written(roles: Roles) -> None:
    """Each refusal named a way out that led to the next one."""
    source, forgotten, output = roles.source, roles.changing, roles.output
    roles.give(source)
    roles.give(forgotten)
    roles.run([source, forgotten], [output])
    for name in ("0", ".0.crc"):  # as a driver leaves it that is killed behind the sink's commit
        (Path(roles.checkpoint) / "commits" / name).unlink()
    with pytest.raises(ConfigError, match="start with it until batch 0 is written"):
        roles.run([source], [output])
    with pytest.raises(UsageError, match="until the batch is written; and leave it out then"):
        roles.run([source], [output], skip=True)
    roles.run([source, forgotten], [output])
    roles.run([source], [output], skip=True)
    roles.give(source)
    roles.run([source], [output])
    roles.expect()


def write(
    roles: Roles,
    *sources: Sequence[str],
    inputs: Sequence[str],
    skip: bool = False,
    adopt: str | None = None,
) -> None:
    """Run a query of one's own over the union of these sources, until it has caught up."""
    frames = [
        read_stream(
            roles.spark, roles.settings, topics, checkpoint=roles.checkpoint, skip_deleted=skip
        ).select("key", "value")
        for topics in sources
    ]
    writer = write_stream(
        functools.reduce(DataFrame.union, frames),
        roles.settings,
        name=roles.name,
        inputs=inputs,
        outputs=[roles.output],
        adopt=adopt,
    )
    writer.start(roles.checkpoint, available_now=True).wait()


def test_sources_in_another_order_are_refused_and_nothing_is_written_twice(roles: Roles) -> None:
    """The refusal of Spark spoke of deleted input, and its way out wrote all of it again."""
    one, other = roles.source, roles.changing
    roles.give(one)
    roles.give(other)
    write(roles, [one], [other], inputs=[one, other])
    with pytest.raises(ConfigError, match=f"source 1 of the query .*{other}.*the sources in the same order"):
        write(roles, [other], [one], inputs=[one, other])
    roles.give(other)
    write(roles, [one], [other], inputs=[one, other])
    roles.expect()
    with pytest.raises(ConfigError, match="the query has 1 sources, and had 2"):
        write(roles, [one, other], inputs=[one, other])
    with pytest.raises(LedgerError, match="would be repeated"):
        write(roles, [other], [one], inputs=[one, other], skip=True)
    roles.expect()


def test_two_sources_of_a_topic_need_not_stand_at_the_same_place(roles: Roles) -> None:
    """The further one's place was compared with that of the other: two drivers, it said, and its way out lost a record."""
    source = roles.source
    frames = [
        read_stream(
            roles.spark, roles.settings, [source], checkpoint=roles.checkpoint, max_offsets_per_batch=most
        ).select("key", "value")
        for most in (3, 5)
    ]
    for _ in range(2):
        roles.give(source)
        writer = write_stream(
            frames[0].union(frames[1]),
            roles.settings,
            name=roles.name,
            inputs=[source],
            outputs=[roles.output],
        )
        writer.start(roles.checkpoint, available_now=True).wait()
    written = [record.value or b"" for record in read_committed(roles.bootstrap, roles.output)]
    assert sorted(written) == sorted(2 * roles.given)


def test_input_that_the_sink_is_told_of_late_has_no_mark_yet_and_the_refusal_says_so(roles: Roles) -> None:
    """It was taken for one that was created anew, which nothing shows."""
    one, other = roles.source, roles.changing
    for topic in (one, other):
        roles.give(topic)
    write(roles, [one, other], inputs=[one])
    write(roles, [one, other], inputs=[one, other])
    for topic in (one, other):
        roles.give(topic)
    with pytest.raises(
        OffsetGapError, match=rf"{other}\[0\]: .*inputs=\[…\] did not name it before"
    ) as refused:
        write(roles, [one, other], inputs=[one, other])
    write(
        roles,
        [one, other],
        inputs=[one, other],
        adopt=str(refused.value).partition("adopt='")[2].partition("'")[0],
    )
    roles.expect()
    recreate_topic(roles.bootstrap, other)
    for _ in range(2):
        roles.give(other)
    with pytest.raises(OffsetGapError, match="created anew"):
        write(roles, [one, other], inputs=[one, other])


@pytest.mark.parametrize("told", ["of the other", "of none"])
def test_former_input_that_is_read_and_not_named_is_not_written_again(roles: Roles, told: str) -> None:
    """Without its mark in the comparison, what had been written of it was written once more."""
    one, other = roles.source, roles.changing
    roles.give(one)
    roles.give(other)
    write(roles, [one, other], inputs=[one, other])
    write(roles, [one], inputs=[one], skip=True)
    roles.give(one)
    write(roles, [one], inputs=[one])
    with pytest.raises(UsageError, match=f"reads {other}, once among the sink's inputs"):
        write(roles, [one, other], inputs=[one] if told == "of the other" else [])
    roles.expect()


def test_former_input_that_is_back_behind_batches_of_unnamed_input_is_not_written_again(
    roles: Roles,
) -> None:
    """The batches before had made no marks, so nothing was compared."""
    one, other = roles.source, roles.changing
    roles.give(one)
    roles.give(other)
    write(roles, [one, other], inputs=[one, other])
    write(roles, [one], inputs=[], skip=True)
    roles.give(one)
    write(roles, [one], inputs=[])
    with pytest.raises(LedgerError, match=f"up to {other}.*would be repeated"):
        write(roles, [one, other], inputs=[one, other])
    roles.expect()


@pytest.mark.parametrize("told", ["of none", "of the other", "of both at its return"])
def test_input_that_the_sink_was_not_told_of_is_not_written_again_when_it_is_back(
    roles: Roles, told: str
) -> None:
    """No mark says how far it was read, and Spark begins it anew: only the plans of older batches show it."""
    one, other = roles.source, roles.changing
    few = [] if told == "of none" else [one]
    all_of_them = [one, other] if told == "of both at its return" else few
    roles.give(one)
    roles.give(other)
    write(roles, [one, other], inputs=few)
    write(roles, [one], inputs=few, skip=True)
    roles.give(one)
    write(roles, [one], inputs=few)
    with pytest.raises(
        OffsetGapError, match="would be written again, if it is the topic that it was"
    ) as refused:
        write(roles, [one, other], inputs=all_of_them)
    edit_last_plan(roles, str(refused.value))
    if all_of_them == [one, other]:
        with pytest.raises(OffsetGapError, match="did not name it before") as untold:
            write(roles, [one, other], inputs=all_of_them)
        write(roles, [one, other], inputs=all_of_them, adopt=token_in(str(untold.value)))
    roles.give(other)
    write(roles, [one, other], inputs=all_of_them)
    roles.expect()


@pytest.mark.parametrize("told_of", [0, ROWS])
def test_input_that_was_read_on_while_the_sink_was_not_told_of_it_is_not_written_again(
    roles: Roles, told_of: int
) -> None:
    """Its mark stood where the sink was told of it the last time: at 0 nothing was refused, and further on the way out wrote the rest again."""
    one, other = roles.source, roles.changing
    roles.give(one)
    if told_of:
        roles.give(other)
    write(roles, [one, other], inputs=[one, other])
    roles.give(other)
    write(roles, [one, other], inputs=[])
    write(roles, [one], inputs=[], skip=True)
    roles.give(one)
    write(roles, [one], inputs=[])
    with pytest.raises(
        LedgerError, match=rf"up to {other}\[0\] offset {told_of + ROWS}.*would be repeated"
    ) as refused:
        write(roles, [one, other], inputs=[one, other])
    edit_last_plan(roles, str(refused.value))
    write(roles, [one, other], inputs=[one, other])
    roles.expect()


def test_untold_input_that_was_created_anew_while_it_was_left_out_is_read_with_the_token(
    roles: Roles,
) -> None:
    one, other = roles.source, roles.changing
    roles.give(one)
    roles.give(other)
    write(roles, [one, other], inputs=[one])
    write(roles, [one], inputs=[one], skip=True)
    roles.give(one)
    write(roles, [one], inputs=[one])
    recreate_topic(roles.bootstrap, other)
    roles.give(other)
    with pytest.raises(OffsetGapError, match="If all of these were, pass once") as refused:
        write(roles, [one, other], inputs=[one])
    write(roles, [one, other], inputs=[one], adopt=token_in(str(refused.value)))
    roles.give(other)
    write(roles, [one, other], inputs=[one])
    roles.expect()


def test_line_that_puts_a_checkpoint_right_has_no_input_that_was_never_read(roles: Roles) -> None:
    """A 0 stood there, and the next start took the input for one that had been read."""
    one, other, third = roles.source, roles.changing, unique("third")
    create_topics(roles.bootstrap, {third: 1})
    for topic in (one, other):
        roles.give(topic)
    write(roles, [one, other], inputs=[one, other])
    write(roles, [one], inputs=[one], skip=True)
    roles.give(one)
    write(roles, [one], inputs=[one])
    roles.give(third)
    every = [one, other, third]
    with pytest.raises(LedgerError, match=f"up to {other}.*would be repeated") as refused:
        write(roles, every, inputs=every)
    assert third not in edit_last_plan(roles, str(refused.value))
    write(roles, every, inputs=every)
    roles.expect()


def token_in(refusal: str) -> str:
    return refusal.partition("adopt='")[2].partition("'")[0]


def edit_last_plan(roles: Roles, refusal: str) -> dict[str, dict[str, int]]:
    """Do what a refusal says: the last line of the file that it names is the one that it prints, and later batches' files go."""
    offsets, batch, line = re.findall(
        r"put (\S+)/(\d+) right, whose last lines are to say (.+?), and remove", refusal
    )[0]
    folder = Path(offsets.removeprefix("file:"))
    file = folder / batch
    file.write_text("\n".join([*file.read_text().splitlines()[:-1], line]))
    for one in (*folder.iterdir(), *(folder.parent / "commits").iterdir()):
        number = one.name.removeprefix(".").removesuffix(".crc")
        if number.isdigit() and (int(number) > int(batch) or (one.name.startswith(".") and number == batch)):
            one.unlink()
    told: dict[str, dict[str, int]] = json.loads(line)
    return told


def test_idle_query_whose_sink_is_told_of_an_input_late_is_given_the_reason(roles: Roles) -> None:
    """It was told that the topic was created anew, and to process it from its beginning, which writes all of it again."""
    one, other = roles.source, roles.changing
    for topic in (one, other):
        roles.give(topic)
    write(roles, [one, other], inputs=[one])
    sink = exactly_once_sink(roles.settings, name=roles.name, inputs=[one, other], outputs=[roles.output])
    with pytest.raises(OffsetGapError, match="did not name it before") as refused:
        sink.refresh()
    assert "created anew, the records below" in str(refused.value)
    assert "from its beginning" not in str(refused.value)


def test_second_query_of_a_name_in_a_session_is_refused_with_the_reason(roles: Roles) -> None:
    job = roles.job([roles.source], [roles.output])
    first = start_stream(job, roles.spark, roles.settings, checkpoint=roles.checkpoint)
    try:
        with pytest.raises(UsageError, match="a query of this name runs already"):
            start_stream(job, roles.spark, roles.settings, checkpoint=roles.checkpoint)
    finally:
        first.query.stop()


def test_query_of_another_source_beside_kafkas_goes_on(roles: Roles) -> None:
    """Its offsets have a form of their own."""
    roles.give(roles.source)

    def run() -> None:
        records = read_stream(
            roles.spark, roles.settings, [roles.source], checkpoint=roles.checkpoint
        ).select("key", "value")
        rate = roles.spark.readStream.format("rate").load()
        nothing = rate.where("false").selectExpr("CAST(NULL AS BINARY) key", "CAST(NULL AS BINARY) value")
        writer = write_stream(
            records.union(nothing),
            roles.settings,
            name=roles.name,
            inputs=[roles.source],
            outputs=[roles.output],
        )
        running = writer.start(roles.checkpoint)
        running.query.processAllAvailable()
        running.query.stop()
        running.wait()

    run()
    roles.give(roles.source)
    run()
    roles.expect()


@pytest.fixture
def log(bootstrap: str) -> CommitLog:
    """The ledger of a sink that reads one topic and writes to another, whose batch 0 is written."""
    output, source, group = unique("out"), unique("in"), unique("group")
    create_topics(bootstrap, {output: 1, source: 1})
    log = CommitLog(settings_of(bootstrap, group=group), unique("sink"), group, output, (source,))
    log.replace(0, None, LogEntry(1, QUERY, 1, run=RUN), marks=OffsetVector({mark_of(log): ROWS}))
    return log


def mark_of(log: CommitLog) -> Partition:
    return Partition(log.inputs[0], 0)


def driver(log: CommitLog, *outputs: str, adopt: str | None = None) -> CommitLogDriver:
    """Of a start that names these outputs, and no inputs."""
    return CommitLogDriver(replace(log, topic=outputs[0], inputs=()), outputs, 1, adopt, ignore_event)


def test_mark_of_a_former_input_says_nothing_of_where_the_ledger_stands(log: CommitLog) -> None:
    assert log.places([*log.inputs, log.topic]).keys() == {log.topic}
    assert log.places(log.inputs).keys() == {log.topic}
    on_the_input = replace(log, topic=log.inputs[0])
    stored = on_the_input.read([0])
    assert stored[0].offset == ROWS, "what is written over is compared with this"
    assert on_the_input.entries(stored) == {}


def test_start_that_names_a_former_input_first_goes_on_where_the_ledger_stands_and_keeps_its_mark(
    log: CommitLog,
) -> None:
    """A ledger that had stood there would be left, and the mark be gone with that."""
    another_run = str(uuid.uuid4())
    plan = driver(log, log.inputs[0], log.topic).plan(1, QUERY, another_run, Division(1))
    assert (plan.batch, plan.done) == (1, {})
    assert log.entries(log.read([0]))[0].run == another_run
    assert log.stored(0, [mark_of(log)])[mark_of(log)].offset == ROWS


def test_ledger_that_is_lost_is_begun_anew_on_a_former_input_over_its_mark(log: CommitLog) -> None:
    former = log.inputs[0]
    delete_topic(log.settings.kafka.bootstrap_servers, log.topic)
    Deadline(PATIENCE_S).wait_for(lambda: not log.places([former]))
    with pytest.raises(LedgerError, match="no entry of shard 0"):
        driver(log, former).plan(1, QUERY, RUN, Division(1))
    assert driver(log, former, adopt=f"{QUERY}:1").plan(1, QUERY, RUN, Division(1)).unchecked
    assert log.places([former]).keys() == {former}


def test_mark_of_a_former_input_does_not_count_as_a_batch_that_a_trial_waits_for(log: CommitLog) -> None:
    for shard, committed in ((0, log.read([0])[0]), (1, None)):
        marks = None if shard else OffsetVector({mark_of(log): ROWS})
        log.replace(shard, committed, LogEntry(1, QUERY, 2, run=RUN), marks=marks)
    job = StreamJob(
        name=log.app, inputs=["other"], outputs=[*log.inputs, log.topic], transform=lambda frame: frame
    )
    assert shards_behind(job.identity(log.settings), log.settings) == 0


def test_shards_that_a_smaller_batch_has_no_more_are_not_behind_it(log: CommitLog) -> None:
    """A trial waited for -2 of them."""
    first, entry = log.read([0])[0], LogEntry(1, QUERY, 4, run=RUN)
    for shard in range(4):
        log.replace(shard, None if shard else first, entry)
    log.replace(0, log.read([0])[0], LogEntry(1, QUERY, 2, run=RUN, was=4))
    settings = log.settings.model_copy(
        update={"spark": log.settings.spark.model_copy(update={"sink_shards": 4})}
    )
    job = StreamJob(name=log.app, inputs=["other"], outputs=[log.topic], transform=lambda frame: frame)
    assert shards_behind(job.identity(settings), settings) == 0

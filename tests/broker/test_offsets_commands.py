"""`eos offsets`: a dry run writes nothing; a write is one transaction that the job's next start takes for its own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from eos.base.deadline import Deadline
from eos.errors import ConfigError
from eos.exits import ExitCode
from tests.support.command_line import Eos
from tests.support.jobs_for_faults import fault_job, in_thread
from tests.support.observer import read_committed, recreate_topic, unique, watermarks
from tests.support.operated import MODES, Operated
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

NewOperated = Callable[..., Operated]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch, eos: Eos) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def operated(bootstrap: str, eos: Eos, tmp_path: Path) -> NewOperated:
    """A maker of jobs of two input partitions, ten records in each."""

    def make(mode: str = "group", *, records: int = 20, **changes: object) -> Operated:
        job = fault_job(bootstrap, partitions=2)
        if records:
            job.load(bootstrap, records)
        return Operated(eos, tmp_path, bootstrap, job, {**MODES[mode], **changes})

    return make


@pytest.mark.parametrize("mode", list(MODES))
def test_job_that_is_set_back_processes_the_records_again_and_no_others(
    bootstrap: str, eos: Eos, operated: NewOperated, mode: str
) -> None:
    one = operated(mode)
    one.run()
    (source,) = one.job.inputs
    before = one.metadata()

    dry = one("offsets", "set", "JOB", "--to", f"{source}:1@7")
    assert dry.code == ExitCode.DONE, dry.err
    for part in (
        "-3 (again)",
        "3 offsets are gone back",
        "--input-from",
        "nothing was written. To do it: --yes",
    ):
        assert part in dry.out
    assert one.offsets() == [10, 10]
    assert one.metadata() == before

    ended = one("offsets", "set", "JOB", "--to", f"{source}:1@7", "--yes")
    assert ended.code == ExitCode.DONE, ended.err
    assert one.offsets() == [10, 7]
    untouched, found = one.metadata()
    assert untouched == before[0]
    assert found is not None
    assert before[1] is not None
    assert (found.mode, found.app, found.topic, found.shard) == (
        mode,
        one.job.name,
        before[1].topic,
        "operator",
    )
    assert (found.started_partitions, found.attempt) == (2, 0)
    assert abs(found.at_s - time.time()) < 60

    words = ended.out.partition("from here on: eos verify ")[2].split()
    one.run()
    assert one.offsets() == [10, 10]
    values = [record.value or b"" for record in read_committed(bootstrap, one.job.audit)]
    assert sorted(v for v in set(values) if values.count(v) == 2) == sorted(
        f"audit {n}".encode() for n in (15, 17, 19)
    )
    assert len(values) == 23
    assert one("verify", "JOB").code == ExitCode.NOT_EXACTLY_ONCE
    verified = eos("verify", *words)  # the line that was printed, as it stands
    assert verified.code == ExitCode.DONE, verified.out


def test_job_that_is_set_forward_skips_records(bootstrap: str, operated: NewOperated) -> None:
    one = operated()
    one.run()
    (source,) = one.job.inputs
    one.job.load(bootstrap, 10, "later ")
    told = one.told("offsets", "set", "JOB", "--to", "latest", "--only", f"{source}:0", "--yes")
    assert [(p["partition"], p["committed"], p["to"], p["difference"]) for p in told["partitions"]] == [
        (0, 10, 15, 5)
    ]
    assert told["written"] is True
    assert "5 offsets are skipped" in " ".join(told["notes"])
    assert set(told["fenced"]) == {
        f"{one.job.name}.{one.job.group}.{kind}".replace("..", ".") for kind in ("s.start", "i.0")
    }
    one.run()
    assert len(read_committed(bootstrap, one.job.audit)) == 25
    assert one.offsets() == [15, 15]
    assert one("verify", "JOB", *told["verify_from"]).code == ExitCode.DONE


def test_every_form_of_a_place(bootstrap: str, operated: NewOperated) -> None:
    one = operated(records=0)
    (source,) = one.job.inputs
    now = datetime.now(UTC)
    writer = Producer({"bootstrap.servers": bootstrap})
    for minutes in (30, 20, 10):
        at_ms = int((now - timedelta(minutes=minutes)).timestamp() * 1000)
        for partition in (0, 0, 1):
            writer.produce(source, b"%d" % minutes, partition=partition, timestamp=at_ms)
            writer.flush(PATIENCE_S)
    at = {minutes: (now - timedelta(minutes=minutes)).isoformat() for minutes in (25, 5)}
    for to, expected in (
        ("latest", [6, 3]),
        (at[25], [2, 1]),
        (at[5], [6, 3]),  # no record of that time or later: the end
        (f"{source}:0@5,{source}:1@0", [5, 0]),
        ("earliest", [0, 0]),
    ):
        assert one("offsets", "set", "JOB", "--to", to, "--yes").code == ExitCode.DONE
        assert one.offsets() == expected
    one.run()
    assert one.job.check(bootstrap).processed == 9


def test_backup_is_restored_with_what_names_its_logs(
    bootstrap: str, operated: NewOperated, tmp_path: Path
) -> None:
    one = operated()
    one.run()
    backup = tmp_path / "offsets.json"
    backup.write_text(one("offsets", "show", "JOB", "--json").out)
    listed = json.loads(backup.read_text())["partitions"]
    before = one.metadata()
    assert before[0] is not None
    assert [(p["committed"], p["leader_epoch"], p["topic_id"]) for p in listed] == [
        (10, 0, before[0].topic)
    ] * 2
    one.job.load(bootstrap, 10, "more ")
    one.run()
    assert one.offsets() == [15, 15]

    restored = one("offsets", "set", "JOB", "--to", str(backup), "--yes")
    assert restored.code == ExitCode.DONE, restored.err
    assert one.offsets() == [10, 10]
    shown = one.told("offsets", "show", "JOB")["partitions"]
    assert [p["leader_epoch"] for p in shown] == [0, 0]
    assert [p["shard"] for p in shown] == ["operator"] * 2


def test_offset_that_was_chosen_has_the_epoch_of_what_is_before_it(operated: NewOperated) -> None:
    """So the job's next start notices a log that was truncated below it meanwhile."""
    one = operated()
    (source,) = one.job.inputs
    for to in (f"{source}:0@4,{source}:1@10", "latest"):
        assert one("offsets", "set", "JOB", "--to", to, "--yes").code == ExitCode.DONE
        assert [p["leader_epoch"] for p in one.told("offsets", "show", "JOB")["partitions"]] == [0, 0]


def test_offsets_may_be_given_one_by_one(operated: NewOperated) -> None:
    """Of two the first was dropped without a word, and the command said to add it."""
    one = operated()
    (source,) = one.job.inputs
    given = [word for place in ("0@4", "1@7") for word in ("--to", f"{source}:{place}")]
    assert one("offsets", "set", "JOB", *given, "--yes").code == ExitCode.DONE
    assert one.offsets() == [4, 7]
    assert one("offsets", "set", "JOB", *given, "--to", "earliest", "--yes").code == ExitCode.CONFIGURATION
    assert one.offsets() == [4, 7]


def test_offsets_of_a_topic_that_was_created_anew_are_refused_and_new_ones_are_accepted(
    bootstrap: str, operated: NewOperated, tmp_path: Path
) -> None:
    """The offset that the group has is of the deleted topic, or Kafka has forgotten it: neither is in the way."""
    one = operated()
    one.run()
    (source,) = one.job.inputs
    backup = tmp_path / "offsets.json"
    backup.write_text(one("offsets", "show", "JOB", "--json").out)
    recreate_topic(bootstrap, source, 2)
    one.job.load(bootstrap, 30, "anew ")
    stored = json.loads(backup.read_text())["partitions"][0]
    old = Consumer({"bootstrap.servers": bootstrap, "group.id": one.job.group, "log_level": 0})
    metadata = f"eos1 mode=group shard=#0 owner=aa commit=1 at={int(time.time())} had=2 app={one.job.name} topic={stored['topic_id']}"
    old.commit(offsets=[TopicPartition(source, p, 10, metadata) for p in (0, 1)], asynchronous=False)
    old.close()

    refused = one("offsets", "set", "JOB", "--to", str(backup), "--yes")
    assert refused.code == ExitCode.OFFSET_GAP
    assert "deleted and created anew" in refused.err
    assert one.offsets() == [10, 10]
    assert one("offsets", "set", "JOB", "--to", "earliest", "--yes").code == ExitCode.DONE
    one.run()
    assert one.offsets() == [15, 15]
    assert len(read_committed(bootstrap, one.job.audit)) == 50


def test_what_cannot_be_is_refused_and_nothing_is_written(operated: NewOperated, tmp_path: Path) -> None:
    one = operated()
    one.run()
    (source,) = one.job.inputs
    other = tmp_path / "other.json"
    other.write_text('{"partitions": [{"topic": 1}]}')
    for to, message in (
        (f"{source}:1@11", f"{source}[1]: 11 is not in the log, which a reader can take up at 0 to 10"),
        (
            f"{source}:2@1",
            f"{source}[2] is no input partition of {one.job.name!r}. Its inputs: {source} (2 partitions)",
        ),
        ("elsewhere:0@1", "elsewhere[0] is no input partition"),
        (f"{source}:1", "give earliest, latest, a time with its zone"),
        (f"{source}@1", "give TOPIC:PARTITION@OFFSET"),
        ("2026-11-22T10:00:00", "whose time?"),
        (str(other), "is not what eos offsets show --json writes"),
    ):
        for yes in ([], ["--yes"]):
            refused = one("offsets", "set", "JOB", "--to", to, *yes)
            assert refused.code == ExitCode.CONFIGURATION
            assert message in refused.err
    refused = one("offsets", "set", "JOB", "--to", "latest", "--only", f"{source}:7")
    assert (refused.code, "no input partition of the job is called so" in refused.err) == (
        ExitCode.CONFIGURATION,
        True,
    )
    assert one.offsets() == [10, 10]


def test_missing_input_is_named(bootstrap: str, eos: Eos, tmp_path: Path) -> None:
    job = fault_job(bootstrap)
    absent = Operated(
        eos, tmp_path, bootstrap, type(job)(("absent",), job.out, job.audit, job.dead), MODES["group"]
    )
    for words in (["show", "JOB"], ["set", "JOB", "--to", "latest", "--yes"]):
        refused = absent("offsets", *words)
        assert refused.code == ExitCode.CONFIGURATION
        assert "absent" in refused.err
        assert "not exist" in refused.err


def test_live_members_are_in_the_way_and_a_dry_run_says_so(bootstrap: str, operated: NewOperated) -> None:
    one = operated()
    with in_thread(one.job, one.settings) as run:
        run.wait_for_commits(20)
        dry = one("offsets", "set", "JOB", "--to", "earliest")
        assert dry.code == ExitCode.DONE
        assert "it would be refused now" in dry.err
        assert "has live members" in dry.err
        refused = one("offsets", "set", "JOB", "--to", "earliest", "--yes")
        assert refused.code == ExitCode.CONFIGURATION
        assert "has live members" in refused.err
        one.job.load(bootstrap, 10, "later ")  # nobody was fenced
        run.wait_for_commits(30)
        run.stop()
    assert one.job.check(bootstrap).processed == 30


def test_owner_that_is_no_member_is_noticed_by_its_commits(bootstrap: str, operated: NewOperated) -> None:
    one = operated("partition")
    with in_thread(one.job, one.settings) as run:
        run.wait_for_commits(20)
        told: list[int] = []
        deadline = time.monotonic() + PATIENCE_S
        done = threading.Event()

        def feed() -> None:
            while not done.is_set() and time.monotonic() < deadline:
                one.job.load(bootstrap, 2, f"fed {len(told)} ")
                told.append(2)
                time.sleep(0.1)

        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            refused = one("offsets", "set", "JOB", "--to", "earliest", "--yes")
        finally:
            done.set()
            feeder.join()
        assert refused.code == ExitCode.CONFIGURATION
        assert "Fix: stop" in refused.err
        run.wait_for_commits(20 + sum(told))
        run.stop()
    assert one.job.check(bootstrap).processed == 20 + sum(told)


def test_offsets_of_another_job_are_refused_until_they_are_adopted(
    bootstrap: str, operated: NewOperated, eos: Eos, tmp_path: Path
) -> None:
    one = operated()
    one.run()
    job = one.job
    renamed = type(job)(job.inputs, job.out, job.audit, job.dead, f"{job.name}-renamed")
    other = Operated(eos, tmp_path, bootstrap, renamed, {**MODES["group"], "group": job.group})
    refused = other("offsets", "set", "JOB", "--to", "latest", "--yes")
    assert refused.code == ExitCode.CONFIGURATION
    assert f"committed by the job '{job.name}'" in refused.err
    assert other("offsets", "set", "JOB", "--to", "latest", "--yes", "--adopt-offsets").code == ExitCode.DONE
    found = other.metadata(job.group)[0]
    assert found is not None
    assert found.app == renamed.name


def test_group_that_had_members_goes_on_in_a_copy_of_it_by_partition(
    bootstrap: str, operated: NewOperated
) -> None:
    one = operated()
    one.run()
    one.job.load(bootstrap, 10, "later ")
    group = unique("copy")
    one.changes = {**MODES["partition"], "group": group}
    dry = one("offsets", "copy", "JOB", "--from-group", one.job.group)
    assert dry.code == ExitCode.DONE, dry.err
    assert "two groups process the same input twice" in dry.out
    assert one.offsets(group) == [None, None]
    told = one.told("offsets", "copy", "JOB", "--from-group", one.job.group, "--yes")
    assert one.offsets(group) == [10, 10]
    assert any(name.endswith(".i.0") for name in told["fenced"])  # of the group that it comes from
    one.run()
    assert one.offsets(group) == [15, 15]
    assert len(read_committed(bootstrap, one.job.audit)) == 30


def test_group_of_owners_by_partition_that_a_member_has_visited_goes_on_in_a_copy_of_it(
    bootstrap: str, operated: NewOperated
) -> None:
    """The start named the copy as the fix, and the copy refused the group for the same reason, and named itself."""
    one = operated("partition")
    one.run()
    visitor = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": one.job.group,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    visitor.subscribe(list(one.job.inputs))
    Deadline(PATIENCE_S).wait_for(lambda: visitor.poll(0.1) is None and visitor.assignment() != [])
    group = unique("copy")
    words = ("offsets", "copy", "JOB", "--from-group", one.job.group, "--yes")
    one.changes["group"] = group
    assert f"group {one.job.group!r} has live members" in one(*words).err
    visitor.close()
    told = one.told(*words)
    assert len([name for name in told["fenced"] if ".p." in name]) >= 2, (
        "those of the group that it comes from"
    )
    one.job.load(bootstrap, 10, "later ")
    one.run()
    assert one.offsets(group) == [15, 15]
    assert len(read_committed(bootstrap, one.job.audit)) == 30


def test_group_of_this_job_is_not_copied_while_it_has_members(bootstrap: str, operated: NewOperated) -> None:
    one = operated()
    group = unique("copy")
    with in_thread(one.job, one.settings) as run:
        run.wait_for_commits(20)
        one.changes["group"] = group
        refused = one("offsets", "copy", "JOB", "--from-group", one.job.group, "--yes")
        assert refused.code == ExitCode.CONFIGURATION
        assert f"group {one.job.group!r} has live members" in refused.err
        run.stop()
    assert one.offsets(group) == [None, None]
    assert one("offsets", "copy", "JOB", "--from-group", one.job.group, "--yes").code == ExitCode.DONE
    assert one.offsets(group) == [10, 10]


def test_group_of_another_program_is_copied_and_left_alone(bootstrap: str, operated: NewOperated) -> None:
    one = operated()
    (source,) = one.job.inputs
    theirs = unique("theirs")
    plain = Consumer({"bootstrap.servers": bootstrap, "group.id": theirs, "log_level": 0})
    plain.commit(offsets=[TopicPartition(source, 0, 4)], asynchronous=False)
    words = ("offsets", "copy", "JOB", "--from-group", theirs, "--yes")
    assert "which eos has not committed" in one(*words).err
    told = one.told(*words, "--adopt-offsets")
    assert "another program, which is not fenced" in " ".join(told["notes"])
    plain.commit(offsets=[TopicPartition(source, 0, 5)], asynchronous=False)
    plain.close()
    assert one.offsets() == [4, None]
    assert f"{source}[1]: no committed offset either" in " ".join(told["notes"])
    with pytest.raises(ConfigError, match=r"\[1\]: .* or there never was one"):
        one.run()
    assert one("offsets", "set", "JOB", "--to", f"{source}:1@0", "--yes").code == ExitCode.DONE
    one.run()
    assert len(read_committed(bootstrap, one.job.audit)) == 16
    nothing = one("offsets", "copy", "JOB", "--from-group", unique("nobody"), "--yes")
    assert (nothing.code, "has no committed offsets" in nothing.err) == (ExitCode.CONFIGURATION, True)


def test_first_offsets_of_a_group_are_those_that_were_set(bootstrap: str, operated: NewOperated) -> None:
    one = operated(input__start="fail")
    shown = one("offsets", "show", "JOB")
    assert shown.code == ExitCode.DONE
    assert shown.out.count("none") == 2
    dry = one.told("offsets", "set", "JOB", "--to", "earliest")
    assert [p["difference"] for p in dry["partitions"]] == [None, None]
    assert dry["notes"] == []
    assert one("offsets", "set", "JOB", "--to", "earliest", "--yes").code == ExitCode.DONE
    one.run()
    assert one.job.check(bootstrap).processed == 20


def test_streaming_query_is_told_where_its_place_is(eos: Eos) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    refused = eos(
        "offsets", "show", "jobs.refunds_stream:job", "--set", "kafka.bootstrap_servers=127.0.0.1:1"
    )
    assert refused.code == ExitCode.CONFIGURATION
    assert "checkpoint and its ledger" in refused.err


@pytest.mark.parametrize("unit", ["partition", "batch"])
def test_spark_batch_plans_from_the_offsets_that_were_set(
    bootstrap: str,
    operated: NewOperated,
    eos: Eos,
    tmp_path: Path,
    unit: Literal["partition", "batch"],
) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    from eos.spark.batch.planning import plan_input

    one = operated()
    (source,) = one.job.inputs
    name = f"{one.job.name}-spark"
    (tmp_path / f"spark_{unit}.py").write_text(
        "from eos.spark import SparkJob\n"
        f"job = SparkJob(name={name!r}, inputs={[source]!r}, outputs={[one.job.out]!r}, commit={unit!r}, transform=lambda df: df)\n"
    )
    where = ["--app-dir", str(tmp_path), "--set", f"kafka.bootstrap_servers={bootstrap}"]
    settings = one.settings.model_copy(update={"group": name})
    plan_input(settings, [source], app=name, commit=unit)  # the first offsets
    ended = eos("offsets", "set", f"spark_{unit}:job", "--to", f"{source}:1@7", "--yes", *where)
    assert ended.code == ExitCode.DONE, ended.err
    stored = one.metadata(name)[1]
    assert stored is not None
    assert (stored.mode, stored.app, stored.owner[-2:]) == (unit, name, "t0")
    plan = plan_input(settings, [source], app=name, commit=unit, preview=True)
    assert {p.number: offset for p, offset in plan.starts.items()} == {0: 0, 1: 7}


def test_offsets_above_the_last_stable_one_are_refused(bootstrap: str, operated: NewOperated) -> None:
    one = operated()
    (source,) = one.job.inputs
    writer = Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("writer")})
    writer.init_transactions(PATIENCE_S)
    writer.begin_transaction()
    writer.produce(source, b"open", partition=0)
    writer.flush(PATIENCE_S)
    refused = one("offsets", "set", "JOB", "--to", f"{source}:0@11")
    writer.abort_transaction(PATIENCE_S)
    assert refused.code == ExitCode.CONFIGURATION
    assert "held back by an open transaction" in refused.err
    read_committed(bootstrap, source)  # behind the marker, which may come after the answer
    assert watermarks(bootstrap, source)[0] == (0, 12)

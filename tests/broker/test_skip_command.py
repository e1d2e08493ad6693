"""`eos skip`: one record becomes a dead letter, the records before it are processed, and eos verify says yes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from eos.errors import TransformError
from eos.exits import ExitCode
from tests.support.command_line import Eos
from tests.support.jobs_for_faults import fault_job
from tests.support.observer import PlainRecord, lso, produce_plain, read_committed, unique
from tests.support.operated import MODES, Operated
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

NewOperated = Callable[..., Operated]
POISON_AT = 6


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch, eos: Eos) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def stopped(bootstrap: str, eos: Eos, tmp_path: Path) -> NewOperated:
    """A maker of jobs that have stopped at a poison record, offset 6 of partition 1, with five healthy ones behind it."""

    def make(mode: str = "group", *, batch: bool = False) -> Operated:
        job = fault_job(bootstrap, partitions=2, batch=batch)
        values = [b"v0", b"v1", b"v2", b"v3", b"v4", b"v5", b"poison", b"w0", b"w1", b"w2", b"w3", b"w4"]
        produce_plain(
            bootstrap,
            job.inputs[0],
            [PlainRecord(value, key=b"k", partition=1, headers=(("h", b"1"),)) for value in values],
        )
        one = Operated(eos, tmp_path, bootstrap, job, MODES[mode])
        with pytest.raises(TransformError):
            one.run()
        return one

    return make


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("batch", [False, True], ids=["by record", "by batch"])
def test_record_becomes_a_dead_letter_and_the_job_goes_on_behind_it(
    bootstrap: str, eos: Eos, stopped: NewOperated, mode: str, batch: bool
) -> None:
    one = stopped(mode, batch=batch)
    (source,) = one.job.inputs
    where, stood = f"{source}:1@{POISON_AT}", one.offsets()
    assert stood[1] is not None
    assert stood[1] < POISON_AT  # the transaction with the records before it was aborted

    dry = one("skip", "JOB", where, "--reason", "no amount")
    assert dry.code == ExitCode.DONE, dry.err
    assert f"stands at offset {stood[1]} of {source}[1]" in dry.out
    assert f"{POISON_AT - stood[1]} records in front of it are processed with it" in dry.out
    assert "nothing was written" in dry.out
    shown = eos(*dry.out.partition("The record: eos ")[2].partition(". To do it")[0].split())  # as it stands
    assert (shown.code, f"1@{POISON_AT}" in shown.out) == (ExitCode.DONE, True), shown.err
    assert one.offsets() == stood
    assert read_committed(bootstrap, one.job.dead) == []

    told = one.told("skip", "JOB", where, "--reason", "no amount", "--yes")
    assert (told["offset"], told["dead_letter"], told["written"]) == (POISON_AT, one.job.dead, True)
    assert one.offsets()[1] == POISON_AT + 1
    (letter,) = read_committed(bootstrap, one.job.dead)
    assert (letter.key, letter.value) == (b"k", b"poison")
    assert dict(letter.headers) == {
        "h": b"1",
        "eos.deadletter.topic": source.encode(),
        "eos.deadletter.partition": b"1",
        "eos.deadletter.offset": b"6",
        "eos.deadletter.error": b"SkippedByOperator: no amount",
    }
    one.run()
    assert one.offsets()[1] == 12
    assert [r.value for r in read_committed(bootstrap, one.job.audit)] == [
        b"audit " + value
        for value in (b"v0", b"v1", b"v2", b"v3", b"v4", b"v5", b"w0", b"w1", b"w2", b"w3", b"w4")
    ]
    verified = one("verify", "JOB", "--complete")
    assert verified.code == ExitCode.DONE, verified.out
    assert (
        "1 records were not transformed here: their dead letters say that an operator has skipped them"
        in verified.out
    )


def test_record_without_a_letter_is_reported_by_a_verification(bootstrap: str, stopped: NewOperated) -> None:
    one = stopped()
    (source,) = one.job.inputs
    words = ("skip", "JOB", f"{source}:1@6", "--reason", "no", "--without-dead-letter", "--yes")
    ended = one(*words)
    assert ended.code == ExitCode.DONE, ended.err
    assert one.offsets()[1] == 7
    one.run()
    assert read_committed(bootstrap, one.job.dead) == []
    verified = one("verify", "JOB")
    assert verified.code == ExitCode.NOT_EXACTLY_ONCE
    assert "poison" in verified.out  # the transform raised there


def test_record_that_is_not_the_next_one_to_stop_at_is_refused(bootstrap: str, stopped: NewOperated) -> None:
    one = stopped()
    (source,) = one.job.inputs
    stood = one.offsets()
    for where, code, message in (
        (f"{source}:1@9", ExitCode.POISON, f"{source}:1@6 --reason WHY --set"),
        (f"{source}:1@12", ExitCode.CONFIGURATION, "a job can read up to 12"),
        (f"{source}:7@0", ExitCode.CONFIGURATION, "no input partition"),
        ("elsewhere:0@0", ExitCode.CONFIGURATION, "no input partition"),
        (f"{source}:1", ExitCode.CONFIGURATION, "give TOPIC:PARTITION@OFFSET"),
    ):
        for yes in ([], ["--yes"]):
            refused = one("skip", "JOB", where, "--reason", "no", *yes)
            assert (refused.code, message in refused.err) == (code, True), refused
    assert one.offsets() == stood
    assert one("skip", "JOB", f"{source}:1@6", "--reason", " ").code == ExitCode.CONFIGURATION
    assert one("skip", "JOB", f"{source}:1@6", "--reason", "no", "--yes").code == ExitCode.DONE
    behind = one("skip", "JOB", f"{source}:1@6", "--reason", "no", "--yes")
    assert (behind.code, "stands at offset 7" in behind.err) == (ExitCode.CONFIGURATION, True)
    assert len(read_committed(bootstrap, one.job.dead)) == 1


def test_offset_without_a_record_is_refused_and_the_next_one_is_named(
    bootstrap: str, eos: Eos, tmp_path: Path
) -> None:
    job = fault_job(bootstrap, partitions=2)
    (source,) = job.inputs
    writer = Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("writer")})
    writer.init_transactions(PATIENCE_S)
    for end in (writer.abort_transaction, writer.commit_transaction):
        writer.begin_transaction()
        writer.produce(source, b"poison", partition=0)
        writer.flush(PATIENCE_S)
        end(20)
    one = Operated(eos, tmp_path, bootstrap, job, MODES["group"])
    with pytest.raises(TransformError):
        one.run()
    # An aborted record and its marker, and the marker behind the only record.
    for offset, following in ((0, "2"), (1, "2"), (3, "not there yet")):
        refused = one("skip", "JOB", f"{source}:0@{offset}", "--reason", "no", "--yes")
        assert refused.code == ExitCode.CONFIGURATION
        assert f"the next one is {following}" in refused.err
    assert one("skip", "JOB", f"{source}:0@2", "--reason", "no", "--yes").code == ExitCode.DONE
    one.run()
    assert one.offsets()[0] == lso(bootstrap, source)[0]
    assert one("verify", "JOB", "--complete").code == ExitCode.DONE


def test_more_records_in_front_than_a_transaction_takes_are_left_to_the_job(stopped: NewOperated) -> None:
    one = stopped()
    one.changes = {**one.changes, "transaction__max_records": 3}
    refused = one("skip", "JOB", f"{one.job.inputs[0]}:1@6", "--reason", "no")
    assert refused.code == ExitCode.CONFIGURATION
    assert "more than 3 records" in refused.err


def test_job_that_ran_in_transactions_of_one_record_stands_near_it(
    bootstrap: str, stopped: NewOperated
) -> None:
    """What the refusal says to do where more stands in front of it than one transaction takes."""
    one = stopped()
    one.changes = {**one.changes, "transaction__max_records": 3, "input__fetch_records": 1}
    with pytest.raises(TransformError):
        one.run()
    stands = one.offsets()[1]
    assert stands is not None
    assert POISON_AT - 3 <= stands <= POISON_AT
    assert one("skip", "JOB", f"{one.job.inputs[0]}:1@6", "--reason", "no", "--yes").code == ExitCode.DONE

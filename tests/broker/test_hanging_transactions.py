"""`eos transactions abort`: ends what hangs in a partition's log, and nothing that a coordinator counts as open."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eos.base.deadline import Deadline
from eos.exits import ExitCode
from eos.offsets import Partition
from eos.ops.check.held_back import ENDED, held_back
from tests.conftest import NewTopic
from tests.support import raw_transactions as raw
from tests.support.command_line import Eos
from tests.support.observer import broker_config, lso, produce_plain, read_committed, unique, watermarks
from tests.support.patience import PATIENCE_S
from tests.support.raw_transactions import Identity, Names, Wire, wire
from tests.support.settings import settings_of

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("unverified")]


@pytest.fixture
def connection(bootstrap: str) -> Iterator[Wire]:
    """To a broker that takes records of a transaction without asking its coordinator, as before Kafka 3.6."""
    with (
        broker_config(bootstrap, "transaction.partition.verification.enable", "false"),
        wire(bootstrap) as connected,
    ):
        yield connected


def hang(bootstrap: str, connection: Wire, names: Names) -> Identity:
    """A record of a transaction that no coordinator knows of: the partition is never added to it."""
    who = raw.opened(bootstrap, connection, names)
    assert connection.send(raw.produce(names, who, b"hangs", 0)).error == 0
    return who


def names_for(topic: NewTopic) -> Names:
    return Names(unique("hanging"), topic("out"), unique("group"), "none")


def where(bootstrap: str, names: Names, offset: int = 0) -> list[str]:
    return [
        *("--topic", names.out, "--partition", "0", "--offset", str(offset)),
        *("--set", f"kafka.bootstrap_servers={bootstrap}"),
    ]


def test_transaction_that_hangs_is_aborted_and_readers_go_on(
    bootstrap: str, connection: Wire, topic: NewTopic, eos: Eos
) -> None:
    names = names_for(topic)
    produce_plain(bootstrap, names.out, [b"before"])
    who = hang(bootstrap, connection, names)
    produce_plain(bootstrap, names.out, [b"behind"])
    assert lso(bootstrap, names.out)[0] == 1
    [said] = held_back(
        settings_of(bootstrap),
        {Partition(names.out, 0): 1},
        {Partition(names.out, 0): 3},
        Deadline(PATIENCE_S),
    )
    assert (said.hangs, said.producer_id) == (True, who.producer_id)
    printed = str(said).partition("`eos ")[2].partition("`")[0].split()
    assert [*printed, *where(bootstrap, names, 1)[-2:]] == [
        "transactions",
        "abort",
        *where(bootstrap, names, 1),
    ]

    dry = eos("transactions", "abort", *where(bootstrap, names, 1), "--json")
    assert dry.code == ExitCode.DONE, dry.err
    found = json.loads(dry.out)
    assert (found["producer_id"], found["epoch"], found["id"], found["state"], found["written"]) == (
        *who,
        names.transactional_id,
        "Empty",
        False,
    )
    assert watermarks(bootstrap, names.out)[0] == (0, 3)
    elsewhere = eos("transactions", "abort", *where(bootstrap, names, 0), "--yes")
    assert elsewhere.code == ExitCode.CONFIGURATION
    assert "Those that are began at 1" in elsewhere.err

    ended = eos("transactions", "abort", *where(bootstrap, names, 1), "--yes")
    assert ended.code == ExitCode.DONE, ended.err
    assert "an abort marker was written" in ended.out
    assert [record.value for record in read_committed(bootstrap, names.out)] == [b"before", b"behind"]
    # Its producer was fenced before: else its next records would begin a transaction that the marker tears.
    assert connection.send(raw.add_partition(names, who)).error in (47, 90)
    again = eos("transactions", "abort", *where(bootstrap, names, 1), "--yes")
    assert (again.code, "no transaction is open that began at offset 1, and no other one" in again.err) == (
        ExitCode.CONFIGURATION,
        True,
    )


def test_transaction_that_hangs_on_an_output_is_named_at_once_with_its_command(
    bootstrap: str, connection: Wire, topic: NewTopic, eos: Eos, tmp_path: Path
) -> None:
    """Status, check and the list were silent about outputs, and `eos verify` waited for an hour before it named the partition."""
    names, source = names_for(topic), topic("in")
    who = hang(bootstrap, connection, names)
    module = unique("hangs").replace("-", "_").replace(".", "_")
    (tmp_path / f"{module}.py").write_text(
        f"""
from eos import Job
job = Job(name="{module}", inputs=["{source}"], outputs=["{names.out}"], transform=lambda record: [])
"""
    )
    at = ["--set", f"kafka.bootstrap_servers={bootstrap}"]
    job = [f"{module}:job", "--app-dir", str(tmp_path), *at]
    command = f"eos transactions abort --topic {names.out} --partition 0 --offset 0"

    (found,) = json.loads(eos("status", *job, "--json").out)["outputs_held_back"]
    assert (found["topic"], found["partition"], found["lso"], found["hangs"]) == (names.out, 0, 0, True)
    (of_job,) = json.loads(eos("transactions", "list", *job, "--json").out)
    of_all = json.loads(eos("transactions", "list", *at, "--open", "--json").out)
    assert {
        **of_job,
        "id": names.transactional_id,
    } in of_all  # of ids that are not the job's it is asked for all alone
    assert (of_job["id"], of_job["state"], of_job["producer_id"]) == (None, "Hanging", who.producer_id)
    assert of_job["partitions"] == [f"{names.out}[0]"]
    for told in (
        eos("status", *job).out,
        eos("check", *job).out,
        eos("transactions", "list", *job).out,
        eos("transactions", "explain", names.transactional_id, *at).out,
        (waited := eos("verify", *job, "--timeout", "6")).err,
    ):
        assert command in " ".join(told.split()), told
    assert waited.code == ExitCode.UNAVAILABLE
    assert "to do: nothing" not in eos("transactions", "explain", names.transactional_id, *at).out

    assert eos("transactions", "abort", *where(bootstrap, names), "--yes").code == ExitCode.DONE
    assert json.loads(eos("status", *job, "--json").out)["outputs_held_back"] == []
    assert json.loads(eos("transactions", "list", *job, "--json").out) == []
    assert "or it hangs" not in eos("check", *job).out


def test_transaction_that_has_ended_since_is_not_said_to_hang(
    bootstrap: str, connection: Wire, topic: NewTopic
) -> None:
    """Of what was held back when a long verification began; and what began since is another one."""
    names = names_for(topic)
    who = raw.opened(bootstrap, connection, names)
    assert connection.send(raw.add_partition(names, who)).error == 0
    assert connection.send(raw.produce(names, who, b"kept", 0)).error == 0
    partition = Partition(names.out, 0)
    asked = ({partition: 0}, {partition: 1})
    (open_still,) = held_back(settings_of(bootstrap), *asked, Deadline(PATIENCE_S))
    assert (open_still.hangs, f"'{names.transactional_id}'" in open_still.by) == (False, True)
    assert connection.send(raw.end(names, who, commit=True)).error == 0
    deadline = time.monotonic() + PATIENCE_S
    while lso(bootstrap, names.out)[0] < 2:  # its marker
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (ended,) = held_back(settings_of(bootstrap), *asked, Deadline(PATIENCE_S))
    assert (ended.hangs, ended.by) == (False, ENDED)


def test_transaction_that_its_coordinator_counts_as_open_is_refused(
    bootstrap: str, connection: Wire, topic: NewTopic, eos: Eos
) -> None:
    names = names_for(topic)
    who = raw.opened(bootstrap, connection, names)
    assert connection.send(raw.add_partition(names, who)).error == 0
    assert connection.send(raw.produce(names, who, b"kept", 0)).error == 0
    for yes in ([], ["--yes"], ["--yes", "--discard-committed"]):
        refused = eos("transactions", "abort", *where(bootstrap, names), *yes)
        assert refused.code == ExitCode.CONFIGURATION
        assert "counts as open (Ongoing)" in refused.err
    assert connection.send(raw.end(names, who, commit=True)).error == 0
    assert [record.value for record in read_committed(bootstrap, names.out)] == [b"kept"]


def test_transaction_that_is_committed_is_aborted_only_by_name(
    bootstrap: str, connection: Wire, topic: NewTopic, eos: Eos
) -> None:
    """As where the brokers left a commit marker out: an abort takes away what was committed."""
    names = names_for(topic)
    who = raw.opened(bootstrap, connection, names)
    other = Names(names.transactional_id, topic("other"), names.group, names.source)
    assert connection.send(raw.add_partition(other, who)).error == 0
    assert connection.send(raw.produce(other, who, b"x", 0)).error == 0
    assert connection.send(raw.end(other, who, commit=True)).error == 0
    deadline = time.monotonic() + PATIENCE_S
    while lso(bootstrap, other.out)[0] < 2:  # its marker
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert connection.send(raw.produce(names, who, b"hangs", 0)).error == 0

    refused = eos("transactions", "abort", *where(bootstrap, names), "--yes")
    assert refused.code == ExitCode.CONFIGURATION
    assert "and an abort takes its records away" in refused.err
    assert watermarks(bootstrap, names.out)[0] == (0, 1)
    dry = eos("transactions", "abort", *where(bootstrap, names))
    assert (dry.code, "and an abort takes its records away" in dry.out) == (ExitCode.DONE, True)
    ended = eos("transactions", "abort", *where(bootstrap, names), "--yes", "--discard-committed")
    assert ended.code == ExitCode.DONE, ended.err
    assert read_committed(bootstrap, names.out) == []


def test_unknown_topic_and_partition_are_named(bootstrap: str, topic: NewTopic, eos: Eos) -> None:
    names = names_for(topic)
    for words in (["--topic", "absent", "--partition", "0"], ["--topic", names.out, "--partition", "7"]):
        refused = eos(
            "transactions", "abort", *words, "--offset", "0", "--set", f"kafka.bootstrap_servers={bootstrap}"
        )
        assert refused.code == ExitCode.CONFIGURATION, refused
        assert "not exist" in refused.err

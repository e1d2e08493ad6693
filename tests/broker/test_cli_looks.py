"""`eos status`, `eos show` and `eos check`: what they say is what the cluster holds."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from eos.errors import ConfigError
from eos.exits import ExitCode
from eos.job import Job
from eos.records import OutputRecord
from eos.runner.worker import run
from tests.conftest import NewTopic
from tests.support import observer
from tests.support.command_line import Eos
from tests.support.observer import PlainRecord, unique
from tests.support.other_kind import Inserting
from tests.support.patience import PATIENCE_S
from tests.support.settings import settings_of

pytestmark = pytest.mark.broker

_MODULE = """
from eos import Job, OutputRecord
job = Job(name="{name}", inputs=["{source}"], outputs=["{out}"],
          transform=lambda record: [OutputRecord("{out}", record.value, record.key)])
"""


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch, eos: Eos) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def open_transaction(bootstrap: str) -> Iterator[Producer]:
    """A foreign producer, whose transaction is open; it is aborted at the end."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("foreign")})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    yield producer
    producer.abort_transaction(PATIENCE_S)


def test_status_says_how_far_the_job_is_and_who_holds_back_the_rest(
    bootstrap: str, topic: NewTopic, eos: Eos, tmp_path: Path, open_transaction: Producer
) -> None:
    source, out, name = topic("in", 2), topic("out"), unique("job").replace(".", "-")
    module = unique("looked").replace("-", "_").replace(".", "_")
    (tmp_path / f"{module}.py").write_text(_MODULE.format(name=name, source=source, out=out))
    line = [f"{module}:job", "--app-dir", str(tmp_path), "--set", f"kafka.bootstrap_servers={bootstrap}"]
    observer.produce_plain(bootstrap, source, [PlainRecord(b"%d" % n, partition=0) for n in range(5)])

    ended = eos("status", *line, "--json")
    assert ended.code == ExitCode.DONE, ended.err
    before = json.loads(ended.out)
    assert [(one["committed"], one["lag"]) for one in before["partitions"]] == [(None, None)] * 2

    job = Job(name=name, inputs=[source], outputs=[out], transform=lambda r: [OutputRecord(out, r.value)])
    run(job, settings_of(bootstrap, input__start="earliest"), until_caught_up=True)
    observer.produce_plain(bootstrap, source, [PlainRecord(b"more", partition=0)] * 3)
    open_transaction.produce(source, b"foreign", partition=1)
    open_transaction.flush(PATIENCE_S)
    observer.produce_plain(bootstrap, source, [PlainRecord(b"behind", partition=1)])

    found = json.loads(eos("status", *line, "--json").out)
    first, second = found["partitions"]
    assert (first["committed"], first["lag"], first["end"], first["held_back_by"]) == (5, 3, 8, None)
    assert (second["committed"], second["lag"], second["end"], second["lso"]) == (0, 0, 2, 0)
    assert "foreign" in second["held_back_by"]
    assert (first["app"], first["shard"], first["mode"]) == (name, "#0", "group")
    assert first["age_s"] < 120
    assert [one["state"] for one in found["transactions"]] == ["CompleteCommit"] * len(found["transactions"])
    (member,) = found["members"]  # a static one, which is a member until its session has timed out
    assert member["partitions"] == [f"{source}[0]", f"{source}[1]"]
    assert member["instance_id"].startswith(name)
    assert first["member"] == f"{member['instance_id']} @ {member['host']}"

    assert first["leader"].startswith("broker 1 (")

    shown = eos("status", *line).out
    assert f"{source}[0]" in shown
    assert f"{first['leader']} leads {source}[0], {source}[1]" in shown
    assert "2 offsets are held back by the open transaction of 'foreign" in shown


def test_status_names_another_program_s_open_transaction_on_an_output_beside_the_job_s_own(
    bootstrap: str, topic: NewTopic, eos: Eos, tmp_path: Path, open_transaction: Producer
) -> None:
    """It was left out where the job's own transaction was open there, too; and the job's own was named while it was ended."""
    source, out, name = topic("in"), topic("out"), unique("job").replace(".", "-")
    module = unique("looked").replace("-", "_").replace(".", "_")
    (tmp_path / f"{module}.py").write_text(_MODULE.format(name=name, source=source, out=out))
    line = [f"{module}:job", "--app-dir", str(tmp_path), "--set", f"kafka.bootstrap_servers={bootstrap}"]

    def named() -> list[str]:
        return [one["by"] for one in json.loads(eos("status", *line, "--json").out)["outputs_held_back"]]

    own = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{name}.{name}.i.0"})
    own.init_transactions(PATIENCE_S)
    own.begin_transaction()
    own.produce(out, b"own")
    own.flush(PATIENCE_S)
    assert named() == []
    own.commit_transaction(PATIENCE_S)
    open_transaction.produce(out, b"foreign")
    open_transaction.flush(PATIENCE_S)
    own.begin_transaction()
    own.produce(out, b"own")
    own.flush(PATIENCE_S)
    (by,) = named()
    assert by.startswith("by the open transaction of 'foreign")
    own.abort_transaction(PATIENCE_S)


def test_check_and_list_say_where_it_cannot_be_asked_whether_a_transaction_hangs(
    bootstrap: str,
    topic: NewTopic,
    eos: Eos,
    tmp_path: Path,
    open_transaction: Producer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, out = topic("in"), topic("out")
    module = unique("looked").replace("-", "_").replace(".", "_")
    (tmp_path / f"{module}.py").write_text(_MODULE.format(name="asked", source=source, out=out))
    line = [f"{module}:job", "--app-dir", str(tmp_path), "--set", f"kafka.bootstrap_servers={bootstrap}"]
    open_transaction.produce(out, b"foreign")
    open_transaction.flush(PATIENCE_S)
    view = "eos.ops.check.held_back.TransactionsView"
    monkeypatch.setattr(view, lambda *_, **__: (_ for _ in ()).throw(ConfigError("not here")))
    said = "could not be asked for: not here"
    assert said in eos("check", *line).out
    assert said in eos("transactions", "list", *line).err


def test_show_tells_committed_records_from_aborted_and_open_ones(
    bootstrap: str, topic: NewTopic, eos: Eos, open_transaction: Producer
) -> None:
    name = topic("shown")
    writer = Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("writer")})
    writer.init_transactions(PATIENCE_S)
    for value, end in ((b"a", writer.commit_transaction), (b"b", writer.abort_transaction)):
        writer.begin_transaction()
        writer.produce(name, value, key=b"\xffk", headers=[("h", b"1"), ("none", None)])
        writer.flush(PATIENCE_S)
        end(20)
    open_transaction.produce(name, b"c")
    open_transaction.flush(PATIENCE_S)
    where = ["--set", f"kafka.bootstrap_servers={bootstrap}"]

    lines = [json.loads(line) for line in eos("show", name, *where, "--json").out.splitlines()]
    assert [(one["value"], one["state"]) for one in lines] == [
        ("a", "committed"),
        ("b", "aborted"),
        ("c", "open"),
    ]
    assert lines[0]["key"] == "\\xffk"
    assert lines[0]["headers"] == [["h", "1"], ["none", None]]
    offset = lines[1]["offset"]
    (one,) = eos("show", name, *where, "--json", "--at", f"0@{offset}", "-n", "1").out.splitlines()
    assert json.loads(one)["value"] == "b"
    assert "aborted" in eos("show", name, *where).out
    for wrong in ("0@99", "7@0", "nothing"):
        refused = eos("show", name, *where, "--at", wrong)
        assert refused.code == ExitCode.CONFIGURATION
        assert refused.err.startswith("eos: ")


def test_show_spells_out_the_offsets_that_a_group_has_committed(
    bootstrap: str, topic: NewTopic, eos: Eos
) -> None:
    """What an operator has to keep of __consumer_offsets before an abort there."""
    source, out, name = topic("in"), topic("out"), unique("job").replace(".", "-")
    observer.produce_plain(bootstrap, source, [b"%d" % n for n in range(5)])
    job = Job(name=name, inputs=[source], outputs=[out], transform=lambda r: [OutputRecord(out, r.value)])
    run(job, settings_of(bootstrap, input__start="earliest"), until_caught_up=True)

    where = ["--set", f"kafka.bootstrap_servers={bootstrap}"]
    ended = eos("show", "__consumer_offsets", *where, "--json", "-n", "400")
    assert ended.code == ExitCode.DONE, ended.err
    mine = [
        one
        for one in map(json.loads, ended.out.splitlines())
        if one["key"] == f"group {name}: {source}[0]" and one["state"] == "committed"
    ]
    ((_, metadata),) = observer.committed_offsets(bootstrap, name, [(source, 0)]).values()
    assert mine[-1]["value"] == f"offset 5, epoch 0, {metadata}"


def test_check_says_what_the_start_would_say_and_changes_nothing(
    bootstrap: str, topic: NewTopic, eos: Eos, tmp_path: Path
) -> None:
    source, out = topic("in"), topic("out")
    module = unique("checked").replace("-", "_").replace(".", "_")
    (tmp_path / f"{module}.py").write_text(_MODULE.format(name="checked", source=source, out=out))
    (tmp_path / f"{module}_less.py").write_text(_MODULE.format(name="checked", source=source, out="absent"))
    where = ["--app-dir", str(tmp_path), "--set", f"kafka.bootstrap_servers={bootstrap}"]
    fits = eos("check", f"{module}:job", *where)
    assert fits.code == ExitCode.DONE
    assert "1 replica:" in fits.out
    assert "the cluster fits, with" in fits.out
    refused = eos("check", f"{module}_less:job", *where)
    assert refused.code == ExitCode.CONFIGURATION
    assert "do not exist: absent" in refused.err


def test_transaction_of_an_owner_that_is_gone_is_explained_and_ended(
    bootstrap: str, topic: NewTopic, eos: Eos
) -> None:
    name, group = topic("held"), unique("group").replace(".", "-")
    transactional_id = f"app.{group}.i.3"
    gone = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    gone.init_transactions(PATIENCE_S)
    gone.begin_transaction()
    gone.produce(name, b"never seen")
    gone.flush(PATIENCE_S)
    observer.produce_plain(bootstrap, name, [PlainRecord(b"behind")])
    where = ["--set", f"kafka.bootstrap_servers={bootstrap}"]

    listed = json.loads(eos("transactions", "list", "--open", "--topic", name, "--json", *where).out)
    assert [(one["id"], one["state"], one["partitions"]) for one in listed] == [
        (transactional_id, "Ongoing", [f"{name}[0]"])
    ]
    explained = eos("transactions", "explain", transactional_id, *where).out
    assert f"app app, group {group}: instance 3" in explained
    assert f"At once: eos transactions end {transactional_id} {' '.join(where)}" in explained

    shown = eos("transactions", "end", transactional_id, *where)
    assert shown.code == ExitCode.DONE, shown.err
    assert "would fence it and abort its transaction" in shown.out
    assert shown.out.endswith("nothing was done. To do it: --yes\n")
    assert "Ongoing" in eos("transactions", "explain", transactional_id, *where).out

    ended = eos("transactions", "end", transactional_id, *where, "--yes")
    assert ended.code == ExitCode.DONE, ended.err
    assert "was aborted" in ended.out
    assert [record.value for record in observer.read_committed(bootstrap, name)] == [b"behind"]
    with pytest.raises(KafkaException):
        gone.commit_transaction(PATIENCE_S)
    assert "no transaction is open" in eos("transactions", "explain", transactional_id, *where).out


def test_transaction_whose_owner_may_live_is_ended_only_on_purpose(
    bootstrap: str, topic: NewTopic, eos: Eos
) -> None:
    name, transactional_id = topic("held"), unique("foreign")
    owner = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    owner.init_transactions(PATIENCE_S)
    owner.begin_transaction()
    owner.produce(name, b"kept")
    owner.flush(PATIENCE_S)
    where = ["--set", f"kafka.bootstrap_servers={bootstrap}"]
    shown = eos("transactions", "end", transactional_id, "--fence-owner", *where)
    assert "nothing was done" in shown.out
    assert "would be refused now" not in shown.err
    shown = eos("transactions", "end", transactional_id, *where)
    assert shown.code == ExitCode.DONE
    assert "would be refused now" in shown.err
    refused = eos("transactions", "end", transactional_id, "--yes", *where)
    assert refused.code == ExitCode.CONFIGURATION
    assert "cannot be seen" in refused.err
    owner.commit_transaction(PATIENCE_S)
    assert [record.value for record in observer.read_committed(bootstrap, name)] == [b"kept"]
    done = eos("transactions", "end", transactional_id, "--yes", "--fence-owner", *where)
    assert "none was open" in done.out
    assert eos("transactions", "end", unique("unknown"), *where).code == ExitCode.CONFIGURATION


def test_owner_by_partition_is_named_by_its_last_commit_as_it_is_no_member(
    bootstrap: str, topic: NewTopic, eos: Eos, tmp_path: Path
) -> None:
    source, out, name = topic("in"), topic("out"), unique("job").replace(".", "-")
    module = unique("looked").replace("-", "_").replace(".", "_")
    (tmp_path / f"{module}.py").write_text(_MODULE.format(name=name, source=source, out=out))
    observer.produce_plain(bootstrap, source, [PlainRecord(b"%d" % n) for n in range(5)])
    job = Job(name=name, inputs=[source], outputs=[out], transform=lambda r: [OutputRecord(out, r.value)])
    alone = {"ownership__mode": "partition", "ownership__ordinal": 0, "ownership__instances": 1}
    settings = settings_of(bootstrap, input__start="earliest", **alone)
    run(job, settings, until_caught_up=True)
    where = ["--set", f"kafka.bootstrap_servers={bootstrap}"]
    host = f"{socket.gethostname()}/{os.getpid()}"

    looked = ["status", f"{module}:job", "--app-dir", str(tmp_path), *where]
    assert f"{host} last committed {source}[0]" in eos(*looked).out
    assert json.loads(eos(*looked, "--json").out)["partitions"][0]["host"] == host

    [shard] = [
        one["id"]
        for one in json.loads(eos("transactions", "list", "--json", *where).out)
        if one["id"].startswith(f"{name}.") and source in one["id"]
    ]
    assert f"last commit: offset 5 on {host}, " in eos("transactions", "explain", shard, *where).out
    refused = eos("transactions", "end", shard, "--yes", *where)
    assert refused.code == ExitCode.CONFIGURATION
    assert f"on {host}" in refused.err


def test_job_without_transactional_ids_has_no_transactions(
    bootstrap: str, topic: NewTopic, eos: Eos, monkeypatch: pytest.MonkeyPatch, open_transaction: Producer
) -> None:
    monkeypatch.setattr("tests.support.other_kind.job", Inserting(topic("in")))
    line = ["tests.support.other_kind:job", "--set", f"kafka.bootstrap_servers={bootstrap}"]
    assert json.loads(eos("status", *line, "--json").out)["transactions"] == []
    refused = eos("transactions", "list", *line)
    assert (refused.code, "'inserting' has no transactional.id" in refused.err) == (
        ExitCode.CONFIGURATION,
        True,
    )

"""`eos prove` with input from a file, and from a topic of a cluster that is in use."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from eos.base.deadline import Deadline
from eos.errors import ConfigError, UnavailableError
from eos.kafka.config import client_config
from eos.kafka.producer import TransactionalClient
from eos.prove import topic_sample
from eos.prove.topic_sample import sampled_records
from tests.support import observer
from tests.support.observer import PlainRecord
from tests.support.patience import PATIENCE_S
from tests.support.settings import settings_of

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

REPOSITORY = Path(__file__).parents[2]
PARTITIONS = 3
RECORDS = [PlainRecord(b"v%d" % n, b"k%d" % (n % 5), n % PARTITIONS) for n in range(60)]
MODULE = """
from eos import Job, OutputRecord

def copied(record):
    seen = OutputRecord("proved-copies", record.value, record.key, record.headers, record.timestamp_ms)
    return [seen]

job = Job(name="copy", inputs=["proved-originals"], outputs=["proved-copies"], transform=copied)
"""


@pytest.fixture
def real(bootstrap: str, topic: NewTopic) -> str:
    """A topic of a cluster that is in use: with committed records and, behind them, aborted ones."""
    name = topic("real", PARTITIONS)
    observer.produce_plain(bootstrap, name, RECORDS)
    settings = settings_of(bootstrap)
    client = TransactionalClient(
        {**client_config(settings), "transactional.id": name, "transaction.timeout.ms": 30_000},
        transaction_timeout_s=30,
    )
    client.init(PATIENCE_S)
    client.begin()
    client.produce(name, [b"aborted"], [b"k"], headers=[[("h", b"x")]], deadline=Deadline(PATIENCE_S))
    client.abort(PATIENCE_S)
    client.close()
    return name


def test_the_copy_of_a_topic_has_its_committed_records_and_leaves_no_group_behind(
    bootstrap: str, real: str
) -> None:
    seen = observer.read_committed(bootstrap, real)
    groups = _groups(bootstrap)
    found = sampled_records(
        settings_of(bootstrap), "nobody", {real: "proved-originals"}, limit=1_000, partitions=PARTITIONS
    )
    assert Counter(map(astuple, found)) == Counter(
        ("proved-originals", one.value, one.key, one.headers, one.timestamp_ms, one.partition) for one in seen
    )
    for number in range(PARTITIONS):
        assert [one.value for one in found if one.partition == number] == [
            one.value for one in seen if one.partition == number
        ]
    assert _groups(bootstrap) <= groups  # those of other tests may go meanwhile


def test_the_newest_records_are_copied_and_as_many_partitions_filled_as_the_input_has(
    bootstrap: str, real: str
) -> None:
    found = sampled_records(settings_of(bootstrap), "nobody", {real: "in"}, limit=12, partitions=2)
    assert 0 < len(found) <= 12
    assert {one.partition for one in found} == {0, 1}
    assert {one.value for one in found} <= {one.value for one in RECORDS[40:]}


def test_a_topic_that_is_not_there_or_empty_is_refused(bootstrap: str, topic: NewTopic) -> None:
    settings = settings_of(bootstrap)
    missing = observer.unique("missing")
    with pytest.raises(ConfigError, match=missing):
        sampled_records(settings, "nobody", {missing: "in"}, limit=10, partitions=1)
    assert missing not in (
        AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=PATIENCE_S).topics or {}
    )
    empty = topic("empty", 2)
    with pytest.raises(ConfigError, match=f"{empty}: it has no committed record. Fix: "):
        sampled_records(settings, "nobody", {empty: "in"}, limit=10, partitions=1)


def test_a_cluster_that_does_not_answer_is_said_before_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_sample, "_ANSWER_S", 2.0)
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1 did not say in 2 s .* Fix: "):
        sampled_records(settings_of("127.0.0.1:1"), "nobody", {"t": "in"}, limit=10, partitions=1)


def test_a_job_is_tried_with_the_records_of_a_cluster_that_is_only_read(
    bootstrap: str, real: str, tmp_path: Path
) -> None:
    groups, ends = _groups(bootstrap), observer.watermarks(bootstrap, real)
    config = tmp_path / "job.toml"
    config.write_text(f'[kafka]\nbootstrap_servers = "{bootstrap}"\n')
    ended = _prove(tmp_path, "-c", str(config), "--input-topic", f"{real}=proved-originals", "--faults", "1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"exactly once +yes", ended.stdout)
    assert _groups(bootstrap) <= groups  # those of other tests may go meanwhile
    assert observer.watermarks(bootstrap, real) == ends
    assert "proved-copies" not in (
        AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=PATIENCE_S).topics or {}
    )


@pytest.mark.slow
def test_a_job_is_tried_with_the_records_of_a_file(tmp_path: Path) -> None:
    lines = [{"key": f"k{n % 5}", "value": {"n": n}, "headers": {"h": "x"}} for n in range(100)]
    (tmp_path / "records.jsonl").write_text("\n".join(map(json.dumps, lines)))
    ended = _prove(tmp_path, "--input", "records.jsonl", "--faults", "2")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (read, fed) = re.search(r"processed +([\d,]+) of ([\d,]+)", ended.stdout).groups()  # type: ignore[union-attr]
    assert read == fed
    assert int(read.replace(",", "")) > len(lines), "the file began again"


def _prove(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (directory / "copying.py").write_text(MODULE)
    command = [sys.executable, "-m", "eos.cli", "prove", "copying:job", *arguments, "--seed", "4", "--only"]
    return subprocess.run(
        [*command, "kill,late", "--set", f"local.jars={REPOSITORY / '.eos/jars'}"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def _groups(bootstrap: str) -> set[str]:
    # Held until its answer is there: a client that is destroyed meanwhile may leave the future open for ever.
    client = AdminClient({"bootstrap.servers": bootstrap})
    found = client.list_consumer_groups(request_timeout=PATIENCE_S).result(PATIENCE_S)
    return {one.group_id for one in found.valid}

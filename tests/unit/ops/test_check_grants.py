"""Grants: derived from what a job declares, exactly, and written down so that an administrator can apply them."""

from __future__ import annotations

import json
import shlex

import pytest

from eos.base.calls import Call
from eos.errors import ConfigError, RetriableError
from eos.job import Declaration, Job
from eos.kafka.access import Access
from eos.offsets import Partition
from eos.ops.check.grants import Grant, Purpose, as_commands, as_json, grants_for
from eos.shards import OrdinalShard, PartitionShard, Shard, SinkShard, StartShard
from tests.support.command_line import Eos
from tests.support.settings import settings_of

JOB = Job(name="copy", inputs=["in"], outputs=["out.b", "out.a"], dead_letters="dead", transform=lambda _: [])


def grants(purpose: Purpose = Purpose.RUN, group: str = "g.1", job: Declaration = JOB) -> list[Grant]:
    return grants_for(purpose, job.identity(settings_of(group=group)))


def of_spark(kind: str) -> Declaration:
    """A job of the same topics, but for dead letters, which no job of Spark declares."""
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    import eos.spark

    made: Declaration = getattr(eos.spark, kind)(
        name="copy", inputs=JOB.inputs, outputs=[*JOB.outputs, "dead"], transform=lambda frame: frame
    )
    return made


def allowed(found: list[Grant]) -> set[tuple[str, str, bool, str]]:
    return {
        (one.resource, one.name, one.is_prefix, operation) for one in found for operation in one.operations
    }


def test_a_loop_reads_writes_and_commits_and_nothing_else() -> None:
    written = {
        ("Topic", topic, False, of) for topic in ("out.a", "out.b", "dead") for of in ("Write", "Describe")
    }
    assert allowed(grants()) == written | {
        ("TransactionalId", "copy.g%2E1.", True, "Write"),
        ("TransactionalId", "copy.g%2E1.", True, "Describe"),
        ("Topic", "in", False, "Read"),
        ("Topic", "in", False, "Describe"),
        ("Group", "g.1", False, "Read"),
        ("Group", "g.1", False, "Describe"),
    }


def test_the_prefix_covers_every_shard_of_the_job_and_no_neighbour() -> None:
    (prefix,) = [one.name for one in grants() if one.is_prefix]
    own: list[Shard] = [
        OrdinalShard("copy", "g.1", 7),
        PartitionShard("copy", "g.1", Partition("in", 3)),
        SinkShard("copy", "g.1", 2),
        StartShard("copy", "g.1"),
    ]
    assert all(shard.transactional_id.startswith(prefix) for shard in own)
    others = [OrdinalShard("copy", "g.10", 7), OrdinalShard("copy", "g", 1), OrdinalShard("copy2", "g.1", 7)]
    assert not any(shard.transactional_id.startswith(prefix) for shard in others)


def test_a_stream_owns_its_ledger_and_not_the_group() -> None:
    found = allowed(grants(job=of_spark("StreamJob")))
    assert ("Group", "g.1.copy.ledger.", True, "Read") in found
    assert ("Topic", "out.b", False, "Read") in found  # the first output: the ledger's offsets stand on it
    assert ("Topic", "out.a", False, "Read") not in found
    assert not any(name == "g.1" for _, name, _, _ in found)


def test_a_batch_needs_what_a_loop_needs() -> None:
    assert grants(job=of_spark("SparkJob")) == grants()


def test_verifying_and_looking_first_change_nothing() -> None:
    for purpose in (Purpose.VERIFY, Purpose.PREFLIGHT):
        assert {of for *_, of in allowed(grants(purpose))} <= {"Read", "Describe", "DescribeConfigs"}
    assert not any(resource == "TransactionalId" for resource, *_ in allowed(grants(Purpose.VERIFY)))
    assert {"Describe"} == {of for resource, *_, of in allowed(grants(Purpose.VERIFY)) if resource == "Group"}


def test_moving_offsets_needs_no_more_than_running_does_and_writes_no_records() -> None:
    moving = allowed(grants(Purpose.OFFSETS))
    assert moving <= allowed(grants())
    assert not any(resource == "Topic" and of == "Write" for resource, _, _, of in moving)
    assert ("Topic", "dead", False, "Describe") in moving  # where eos verify begins from then on


def test_ending_transactions_takes_a_look_at_all_of_them() -> None:
    found = allowed(grants(Purpose.TRANSACTIONS))
    assert ("TransactionalId", "*", False, "Describe") in found
    assert ("Cluster", "kafka-cluster", False, "Alter") in found
    assert not any(resource in ("Topic", "Group") and of == "Write" for resource, _, _, of in found)


def test_commands_say_all_and_are_quoted_for_a_shell() -> None:
    lines = as_commands(grants(group="it's"), "User:CN=a b").splitlines()
    commands = [shlex.split(line) for line in lines if line.startswith("kafka-acls.sh")]
    assert len(commands) == len(grants())
    assert all(words[words.index("--allow-principal") + 1] == "User:CN=a b" for words in commands)
    first, last = commands[0], commands[-1]
    assert first[-4:] == ["--transactional-id", "copy.it%27s.", "--resource-pattern-type", "prefixed"]
    assert last[-2:] == ["--group", "it's"]
    assert [last[i + 1] for i, word in enumerate(last) if word == "--operation"] == ["Read", "Describe"]


def test_json_reads_back() -> None:
    read = json.loads(as_json(grants(), "User:x"))
    assert {one["principal"] for one in read} == {"User:x"}
    assert [(one["resource"], one["name"]) for one in read] == [(one.resource, one.name) for one in grants()]


def test_the_command_takes_the_principal_of_the_login(eos: Eos, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EOS_KAFKA__SECURITY_PROTOCOL", "SASL_PLAINTEXT")
    monkeypatch.setenv("EOS_KAFKA__SASL_MECHANISM", "SCRAM-SHA-512")
    monkeypatch.setenv("EOS_KAFKA__SASL_USERNAME", "refunds")
    monkeypatch.setenv("EOS_KAFKA__SASL_PASSWORD", "secret")
    shown = eos("acl", "show", "jobs.refunds:job", "--format", "json")
    read = json.loads(shown.out)
    assert {one["principal"] for one in read} == {"User:refunds"}
    assert {one["name"] for one in read if one["is_prefix"]} == {"refunds.refunds."}


def test_the_command_without_a_principal_asks_for_one(eos: Eos) -> None:
    shown = eos("acl", "show", "jobs.refunds:job", "--format", "kafka-acls")
    assert (shown.code, "--principal" in shown.err) == (0, True)
    assert "User:PRINCIPAL" in shown.out


def test_the_table_shows_prefixes_and_what_is_only_a_check(eos: Eos, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "refunds.refunds.*" in eos("acl", "show", "jobs.refunds:job", "--principal", "User:x").out
    shown = eos("acl", "show", "jobs.refunds:job", "--principal", "User:x", "--for", "preflight").out
    assert "kafka-cluster" in shown
    assert "(a check)" in shown


@pytest.mark.parametrize(
    ("module", "group"), [("refunds_stream", "refunds-stream.ledger.*"), ("refunds_batch", "refunds-batch ")]
)
def test_the_command_knows_jobs_of_spark(
    eos: Eos, monkeypatch: pytest.MonkeyPatch, module: str, group: str
) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    monkeypatch.setenv("COLUMNS", "200")
    assert group in eos("acl", "show", f"jobs.{module}:job", "--principal", "User:x").out


@pytest.mark.parametrize(
    ("config", "principal"),
    [
        ({"security.protocol": "SASL_SSL", "sasl.username": "me"}, "User:me"),
        ({"security.protocol": "SSL", "ssl.certificate.location": "/c.pem"}, "the principal of /c.pem"),
        ({}, "User:ANONYMOUS"),
    ],
)
def test_a_refusal_names_its_principal(config: dict[str, str], principal: str) -> None:
    refused = ConfigError("refused", code="GROUP_AUTHORIZATION_FAILED")
    named = Access(config | {"group.id": "g"}).named(refused, Call.CONSUME)
    assert str(named) == f"{principal} is not allowed to Read on Group 'g': refused"
    assert named.code == refused.code


def test_what_is_no_refusal_stays_as_it_is() -> None:
    access = Access({"group.id": "g"})
    for error in (ConfigError("other", code="_SSL"), RetriableError("x", code="GROUP_AUTHORIZATION_FAILED")):
        assert access.named(error, Call.COMMIT) is error
    once = access.named(ConfigError("x", code="GROUP_AUTHORIZATION_FAILED"), Call.COMMIT)
    assert access.named(once, Call.SEND_OFFSETS) is once

"""Grants: the access that a job needs on a cluster that allows nothing by default, derived from what it declares.

Describe is named wherever it is used, though Kafka's own authorizer lets Read and Write imply it: other authorizers do
not, and a list that says what is asked for can be reviewed. Running needs no grant on the cluster: a transactional
producer needs no IdempotentWrite (brokers since 2.8; tried on one that allows nothing else).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Literal

from eos.group.offset_record import OFFSETS_TOPIC
from eos.identity import Identity

Resource = Literal["TransactionalId", "Topic", "Group", "Cluster"]
Operation = Literal["Read", "Write", "Describe", "DescribeConfigs", "Alter"]

# The brokers' own topics that a transaction is written to: preflight looks at their replication. They exist once they
# were used.
INTERNAL_TOPICS = (OFFSETS_TOPIC, "__transaction_state")
_ANY = "*"  # Kafka's wildcard, as a literal name
_CLUSTER = "kafka-cluster"  # Kafka's one name of the resource
_ADMIN = """\
: "${BOOTSTRAP:?host:port of a broker}"
: "${ADMIN:?properties file of an administrator: how kafka-acls.sh logs in}"\
"""
_OPTIONS = {"TransactionalId": "--transactional-id", "Topic": "--topic", "Group": "--group"}


class Purpose(StrEnum):
    """What access is for; each may be given to a principal of its own."""

    RUN = "run"
    # In addition, for all that is looked at before a run; without it there are warnings.
    PREFLIGHT = "preflight"
    VERIFY = "verify"
    STATUS = "status"
    # For an operator's commands that change things; eos skip needs what a run needs.
    OFFSETS = "offsets"
    TRANSACTIONS = "transactions"


@dataclass(frozen=True, slots=True)
class Grant:
    """What a principal may do with one resource."""

    resource: Resource
    name: str
    is_prefix: bool  # whether the name is a beginning (pattern PREFIXED), not the whole name (LITERAL)
    operations: tuple[Operation, ...]
    why: str
    needed: bool = True  # whether the work fails without it; if not, a check is left out


def grants_for(purpose: Purpose, job: Identity) -> list[Grant]:
    """What a job needs for a purpose, and nothing more."""
    match purpose:
        case Purpose.RUN:
            return list(_to_run(job))
        case Purpose.PREFLIGHT:
            return list(_to_look_first(job))
        case Purpose.VERIFY:
            return list(_to_verify(job))
        case Purpose.STATUS:
            return list(_to_look_on(job))
        case Purpose.OFFSETS:
            return list(_to_move(job))
        case Purpose.TRANSACTIONS:
            return list(_to_end(job))


def _to_run(job: Identity) -> Iterator[Grant]:
    yield from _of_ids(job, ("Write", "Describe"), "transactions of the job's shards")
    for topic in job.read:
        why = "input, and its offsets in transactions" if topic in job.inputs else "read whole by each run"
        yield Grant("Topic", topic, False, ("Read", "Describe"), why)
    for topic in job.outputs:
        if topic == job.ledger_topic:
            why = "output; the ledger's offsets stand on it"
            yield Grant("Topic", topic, False, ("Read", "Write", "Describe"), why)
        else:
            yield Grant("Topic", topic, False, ("Write", "Describe"), "output")
    if job.ledgers:
        yield Grant("Group", job.ledgers, True, ("Read", "Describe"), "the ledger: what is written")
    else:
        yield Grant("Group", job.group, False, ("Read", "Describe"), "input offsets")


def _to_look_first(job: Identity) -> Iterator[Grant]:
    why = "replication and in-sync replicas"
    for topic in INTERNAL_TOPICS:
        yield Grant("Topic", topic, False, ("Describe", "DescribeConfigs"), why, needed=False)
    for topic in job.outputs:
        yield Grant("Topic", topic, False, ("DescribeConfigs",), why, needed=False)
    why = "transaction.max.timeout.ms of the brokers"
    yield Grant("Cluster", _CLUSTER, False, ("DescribeConfigs",), why, needed=False)


def _to_verify(job: Identity) -> Iterator[Grant]:
    for topic in job.inputs:
        yield Grant("Topic", topic, False, ("Read", "Describe"), "input")
    for topic in job.outputs:
        yield Grant("Topic", topic, False, ("Read", "Describe"), "output")
    for topic in sorted({*job.inputs, *job.outputs}):
        why = "cleanup.policy: whether records were compacted; message.timestamp.type: whose time they carry"
        yield Grant("Topic", topic, False, ("DescribeConfigs",), why, needed=False)
    yield Grant("Group", job.group, False, ("Describe",), "committed offsets; it never joins the group")


def _to_look_on(job: Identity) -> Iterator[Grant]:
    for topic in job.inputs:
        yield Grant("Topic", topic, False, ("Describe",), "where the input ends")
    for topic in job.outputs:
        yield Grant("Topic", topic, False, ("Describe",), "what holds back its readers", needed=False)
    yield Grant(
        "Group", job.group, False, ("Describe",), "committed offsets, and members; it never joins the group"
    )
    why = "the state of the job's transactions, and whether one of them holds input back"
    yield from _of_ids(job, ("Describe",), why, needed=False)


def _to_move(job: Identity) -> Iterator[Grant]:
    yield from _of_ids(job, ("Write", "Describe"), "fence the job's shards, and commit")
    for topic in job.inputs:
        yield Grant(
            "Topic", topic, False, ("Read", "Describe"), "its offsets, and where its logs begin and end"
        )
    for topic in job.outputs:
        yield Grant("Topic", topic, False, ("Describe",), "where the output ends: eos verify begins there")
    yield Grant(
        "Group",
        job.group,
        False,
        ("Read", "Describe"),
        "input offsets, and members; it never joins the group",
    )


def _to_end(job: Identity) -> Iterator[Grant]:
    yield from _of_ids(job, ("Write", "Describe"), "list the job's transactions, and end them")
    yield Grant("Group", job.group, False, ("Describe",), "members: whether an owner may live")
    for topic in sorted({*job.inputs, *job.outputs}):
        yield Grant(
            "Topic", topic, False, ("Read", "Describe"), "transactions abort: what is open in its logs"
        )
    why = "what hangs there (transactions abort, show); it holds the offsets of all groups"
    yield Grant("Topic", OFFSETS_TOPIC, False, ("Read", "Describe"), why, needed=False)
    why = "transactions abort: whether any coordinator counts a transaction as open"
    yield Grant("TransactionalId", _ANY, False, ("Describe",), why)
    yield Grant(
        "Cluster", _CLUSTER, False, ("Alter",), "transactions abort: the marker (before 3.8: ClusterAction)"
    )


def _of_ids(
    job: Identity, operations: tuple[Operation, ...], why: str, *, needed: bool = True
) -> Iterator[Grant]:
    if job.ids is not None:
        yield Grant("TransactionalId", job.ids, True, operations, why, needed)


# --- how they are written down ---------------------------------------------------------------------------


def as_json(grants: Iterable[Grant], principal: str) -> str:
    """A list of objects, each with the principal."""
    return json.dumps([{"principal": principal, **asdict(one)} for one in grants], indent=2)


def as_commands(grants: Iterable[Grant], principal: str) -> str:
    """A shell script of Kafka's kafka-acls.sh, for an administrator; its first lines name the variables that it needs."""
    return "\n".join([_ADMIN, *(_command(one, principal) for one in grants)])


def _command(grant: Grant, principal: str) -> str:
    operations = [word for operation in grant.operations for word in ("--operation", operation)]
    pattern = ["--resource-pattern-type", "prefixed"] if grant.is_prefix else []
    on = ["--cluster"] if grant.resource == "Cluster" else [_OPTIONS[grant.resource], grant.name]
    words = ["--add", "--allow-principal", principal, *operations, *on, *pattern]
    return f'kafka-acls.sh --bootstrap-server "$BOOTSTRAP" --command-config "$ADMIN" {shlex.join(words)}'

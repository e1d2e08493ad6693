"""Ends: what differs between jobs by what stands at their two ends: topics, tables, or the rows of an outbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from eos.prove.database_proxy import Statement
from eos.prove.faults import ERRORS, TRANSACTIONAL, FaultKind
from eos.prove.inputs import DELETING
from eos.testing.proxy import ApiKey

_FIX = "Fix: leave it out"
_STATEMENTS = (Statement.WRITE, Statement.COMMIT)
_NO_TRANSACTION = (
    f"a job that writes to tables has no transaction of Kafka; `database` loses and delays a COMMIT. {_FIX}"
)


@dataclass(frozen=True, kw_only=True)
class Ends:
    """What differs.

    Attributes:
        requests: at which a process is killed or stopped, in the order of a transaction.
        errors: the requests that are answered by errors.
        impossible: kinds of faults that cannot happen, and why.
        left_out: ways of changing the input that cannot be judged.
        has_database: one end is a database.
        has_transactions: it commits in transactions of Kafka.
        has_shards: each group that it commits to is one shard's, and a worker has one.
    """

    requests: Sequence[ApiKey | Statement]
    errors: Sequence[ApiKey]
    impossible: Mapping[FaultKind, str] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()
    has_database: bool = True
    has_transactions: bool = True
    has_shards: bool = False


ENDS: Mapping[Literal["topics", "tables", "rows"], Ends] = {
    "topics": Ends(
        requests=TRANSACTIONAL,
        errors=tuple(ERRORS),
        impossible={FaultKind.DATABASE: f"the job has no database at either end. {_FIX}"},
        has_database=False,
    ),
    "tables": Ends(
        requests=_STATEMENTS,
        errors=(ApiKey.FETCH, ApiKey.OFFSET_FETCH, ApiKey.HEARTBEAT),
        impossible=dict.fromkeys((FaultKind.LATE, FaultKind.DROP, FaultKind.EXPIRY), _NO_TRANSACTION),
        left_out=DELETING,  # the rows of deleted input would be made by nothing
        has_transactions=False,
    ),
    "rows": Ends(
        requests=(*_STATEMENTS, *TRANSACTIONAL),
        errors=TRANSACTIONAL,
        has_shards=True,
        impossible={
            FaultKind.INPUT: f"a relay has no input topic. {_FIX}",
            FaultKind.REBALANCE: f"relays share no input by a group, and nothing joins. {_FIX}",
        },
    ),
}

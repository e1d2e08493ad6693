"""Hanging transactions: open in a partition's log, though no coordinator counts them as open; nothing else ever ends them."""

from __future__ import annotations

import time
from dataclasses import dataclass

from eos import retry
from eos.base.commands import suggested
from eos.base.listing import counted
from eos.core.fence import fence
from eos.errors import ConfigError
from eos.kafka.admin import Admin
from eos.offsets import Partition
from eos.ops.check.transactions import OpenProducer, TransactionDescription, TransactionsView
from eos.settings import Settings

_MAX_TIMEOUT = "transaction.max.timeout.ms"
_DEFAULT_MAX_TIMEOUT_MS = 900_000
_MARGIN_S = 60.0  # coordinators look for expired transactions now and then, and clocks differ
_ASK_S = 15.0


@dataclass(frozen=True, slots=True)
class Hanging:
    """A hanging transaction.

    Attributes:
        partition: where it hangs.
        producer: whose it is.
        known: the transactional.id of that producer; None: the coordinators list none.
    """

    partition: Partition
    producer: OpenProducer
    known: TransactionDescription | None

    @property
    def may_be_committed(self) -> bool:
        """Whether its coordinator may have committed it, and only its marker is missing here.

        The epoch does not tell it from an earlier one: with the second protocol of transactions it rises at each end.
        """
        return self.known is not None and self.known.state == "CompleteCommit"


def find(settings: Settings, view: TransactionsView, partition: Partition, start: int) -> Hanging:
    """The hanging transaction that began at an offset.

    Raises:
        ConfigError: none is open there; a coordinator counts it as open; or whether one does cannot be known.
        UnavailableError: the cluster did not answer in time.
    """
    admin = Admin.of(settings)
    listed = retry.ask(lambda s: admin.partitions([partition.topic], s), timeout_s=settings.open_timeout_s)
    if partition not in listed:
        raise ConfigError(
            f"{partition} does not exist: {partition.topic} has {counted(len(listed), 'partition')}"
        )
    opened = view.open_producers([partition])[partition]
    producer = next((one for one in opened if one.start == start), None)
    if producer is None:
        others = ", ".join(str(one.start) for one in sorted(opened, key=lambda one: one.start))
        raise ConfigError(
            f"{partition}: no transaction is open that began at offset {start}"
            + (f". Those that are began at {others}" if others else ", and no other one is")
        )
    described = view.describe(view.transactional_ids()).values()
    known = next((one for one in described if one.producer_id == producer.producer_id), None)
    if known is not None and known.is_open:
        raise ConfigError(
            f"{partition}: the transaction that began at offset {start} is of {known.transactional_id!r}, which its coordinator "
            f"counts as open ({known.state}): a marker here would tear it. Fix: "
            + suggested("transactions end", known.transactional_id)
        )
    if known is None:
        _refuse_young(settings, partition, producer)
    return Hanging(partition, producer, known)


def abort(
    settings: Settings, view: TransactionsView, partition: Partition, start: int, *, discard_committed: bool
) -> Hanging:
    """End a hanging transaction as aborted, once its producer can't write any more.

    Args:
        settings: how to reach the cluster.
        view: of its transactions.
        partition: where it hangs.
        start: the offset of its first record there.
        discard_committed: also if it may be committed, and only the marker is missing.

    Raises:
        EosError: as `find`, and where it may be committed.
    """
    found = find(settings, view, partition, start)
    if found.may_be_committed and not discard_committed:
        raise ConfigError(f"{partition}: {taken_away(found)}. Fix: keep them first, then --discard-committed")
    if found.known is not None:
        # An owner that goes on under this producer id could begin its next transaction before the marker comes.
        fence(settings, found.known.transactional_id)
    view.write_abort_marker(partition, found.producer)
    return found


def taken_away(found: Hanging) -> str:
    """What an abort takes away, in words."""
    of = "" if found.known is None else f" of {found.known.transactional_id!r}"
    return (
        f"the last transaction{of} is committed. If it is the one that began at offset {found.producer.start}, its marker is missing "
        "here, and an abort takes its records away, for good"
    )


def _refuse_young(settings: Settings, partition: Partition, producer: OpenProducer) -> None:
    """Of a producer that no coordinator lists: this principal may not be allowed to see it."""
    admin = Admin.of(settings)
    configs = admin.broker_configs(admin.brokers(_ASK_S), _ASK_S)
    limits = [int(one.get(_MAX_TIMEOUT, _DEFAULT_MAX_TIMEOUT_MS)) for one in configs.values()]
    limit_s = max(limits, default=_DEFAULT_MAX_TIMEOUT_MS) / 1000 + _MARGIN_S
    age_s = time.time() - producer.last_ms / 1000
    if age_s < limit_s:
        raise ConfigError(
            f"{partition}: no coordinator lists the producer {producer.producer_id} of this transaction, or this principal may not "
            f"see it, and its last record is {age_s:.0f} s old: it may be open. Fix: grant Describe on every TransactionalId, or "
            f"wait until it is {limit_s:.0f} s old ({_MAX_TIMEOUT} of the brokers)"
        )

"""Transactions as the brokers see them (KIP-664); by kafka-python, since librdkafka has no such calls.

It only looks, but for one call, which an operator's command makes (`TransactionsView.write_abort_marker`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from eos.base.calls import Call
from eos.base.commands import forgotten_local
from eos.base.deadline import Deadline
from eos.errors import ConfigError, EosError, RetriableError, UnavailableError
from eos.kafka.admin import Admin
from eos.offsets import Partition
from eos.ops.check.kafka_python import client_options, kafka_python
from eos.retry import resume
from eos.settings import Settings

T = TypeVar("T")

_REASON_S = 1.0
# A broker's answer may take this long on a busy machine, also at the end of a deadline.
_MIN_TIMEOUT_MS = 1_000
# What keeps records from read_committed readers: everything between begin and the last marker.
_OPEN_STATES = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
_LOOKING = "Describe on its TransactionalId prefix"
_NEEDS = {
    "connect": _LOOKING,
    "list transactions": _LOOKING,
    "describe transactions": _LOOKING,
    "describe producers": "Read on the topic",
    "abort transaction": "Alter on the Cluster (before Apache Kafka 3.8: ClusterAction)",
}


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """What the coordinator knows of a transactional.id.

    A higher epoch, or another producer id, means that a producer has initialised the transactional.id since.
    """

    transactional_id: str
    state: str  # Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort …
    producer_id: int
    producer_epoch: int
    timeout_ms: int  # transaction.timeout.ms of its producer
    started_ms: int | None  # when the open transaction began, since the epoch; None if none is open
    partitions: frozenset[Partition]  # of the open transaction
    coordinator: int  # the id of a broker

    @property
    def is_open(self) -> bool:
        """Whether it holds back read_committed readers."""
        return self.state in _OPEN_STATES

    @property
    def open_s(self) -> float | None:
        """For how long it has been open, by the clocks of the coordinator and of this process; None if it is not."""
        return None if self.started_ms is None else time.time() - self.started_ms / 1000


@dataclass(frozen=True, slots=True)
class OpenProducer:
    """A producer whose transaction is open in a partition's log, by the leader of the partition."""

    producer_id: int
    epoch: int
    start: int  # the offset of the transaction's first record there
    last_ms: int  # the time of its last record there, since the epoch


class TransactionsView:
    """A view of the cluster's transactions; use it as a context manager. Needs Apache Kafka 3.0 or newer.

    Listing shows the ids that the principal may describe (ACL Describe on TransactionalId).

    Args:
        settings: where the cluster is.
        timeout_s: seconds for connecting, and then for each call.

    Raises (every method):
        ConfigError: the security settings have no counterpart in kafka-python, access was refused, or the brokers are older
            than 3.0.
        UnavailableError: no usable answer in time.
    """

    def __init__(self, settings: Settings, *, timeout_s: float = 15.0) -> None:
        self._settings = settings
        self._servers = settings.kafka.bootstrap_servers
        self._timeout_s = timeout_s
        self._errors, self._admin = kafka_python()
        self._client = self._connected()

    def _connected(self) -> Any:
        deadline = Deadline(self._timeout_s)
        options = client_options(self._settings)
        if (tokens := options.get("sasl_oauth_token_provider")) is not None:
            # Here, where its error can be raised: the client asks for it in a thread of its own.
            tokens.token(deadline.left_s)
        timeout_ms = max(_MIN_TIMEOUT_MS, int(deadline.left_s * 1000))
        nets: list[Any] = []  # its constructor connects, and when that fails it leaves its thread running

        def net(**config: Any) -> Any:
            nets.append(self._admin.KafkaAdminClient.DEFAULT_CONFIG["kafka_client"](**config))
            return nets[-1]

        try:
            return self._admin.KafkaAdminClient(
                **options, kafka_client=net, bootstrap_timeout_ms=timeout_ms, request_timeout_ms=timeout_ms
            )
        except (self._errors.KafkaError, OSError) as error:
            for one in nets:
                with contextlib.suppress(Exception):
                    one.close()
            raise _reason(self._settings) or self._classified(error, "connect") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def api_versions(self) -> dict[str, int]:
        """The newest version of each request that the broker asked understands, by the request's name."""
        return {api.name: newest for api, (_, newest) in self._client.api_versions().items()}

    def transactional_ids(self, prefix: str = "") -> list[str]:
        """The transactional.ids that the coordinators know, by prefix."""
        listings = self._call("list transactions", lambda client: client.list_transactions())
        return sorted(
            one.transactional_id
            for of_broker in listings.values()
            for one in of_broker
            if one.transactional_id.startswith(prefix)
        )

    def describe(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """The state of each of these ids; those that no coordinator knows are left out."""
        wanted = list(transactional_ids)
        try:
            found = self._call("describe transactions", lambda client: client.describe_transactions(wanted))
        except _UnknownIdError:
            if len(wanted) == 1:
                return {}
            # One unknown id fails the whole request.
            return {name: state for one in wanted for name, state in self.describe([one]).items()}
        return {name: _state(name, described) for name, described in found.items()}

    def open_producers(self, partitions: Iterable[Partition]) -> dict[Partition, list[OpenProducer]]:
        """The producers whose transactions are open in the logs of these partitions. Needs Read on the topics."""
        asked = {partition: self._theirs(partition) for partition in partitions}
        if not asked:
            return {}
        found = self._call("describe producers", lambda client: client.describe_producers(asked.values()))
        return {
            partition: [
                OpenProducer(
                    one.producer_id,
                    one.producer_epoch,
                    one.current_transaction_start_offset,
                    one.last_timestamp,
                )
                for one in found[theirs].active_producers
                if one.current_transaction_start_offset >= 0
            ]
            for partition, theirs in asked.items()
        }

    def write_abort_marker(self, partition: Partition, producer: OpenProducer) -> None:
        """Let the partition's leader end a producer's transaction there as aborted, whatever the coordinator says of it.

        Sent once: a second marker could end the producer's next transaction.

        Raises:
            UnavailableError: no answer; it may have been written.
        """
        spec = self._admin.AbortTransactionSpec(self._theirs(partition), producer.producer_id, producer.epoch)
        try:
            self._client.abort_transaction(spec)
        except (self._errors.KafkaError, OSError) as error:
            classified = self._classified(error, "abort transaction")
            if isinstance(classified, ConfigError):
                raise classified from error
            raise UnavailableError(f"{classified}. The marker may have been written: look again") from error

    def lingering(self, prefix: str = "") -> list[TransactionDescription]:
        """The open transactions of ids with this prefix: of producers at work, or of dead ones until the timeout."""
        states = self.describe(self.transactional_ids(prefix)).values()
        return sorted((one for one in states if one.is_open), key=lambda one: one.transactional_id)

    @staticmethod
    def _theirs(partition: Partition) -> Any:
        from kafka.structs import TopicPartition

        return TopicPartition(partition.topic, partition.number)

    def _call(self, name: str, call: Callable[[Any], T]) -> T:
        def once(_: float) -> T:
            try:
                return call(self._client)
            except (self._errors.KafkaError, OSError) as error:
                raise self._classified(error, name) from error

        def reconnect(*_: object) -> None:
            # kafka-python goes on asking the coordinator that it found first, also when that broker is away (3.0.12).
            with contextlib.suppress(UnavailableError):
                fresh = self._connected()
                self._client.close()
                self._client = fresh

        return resume(Call.METADATA, once, deadline=Deadline(self._timeout_s), on_retry=reconnect)

    def _classified(self, error: Exception, call: str) -> EosError:
        text = f"{call}: {type(error).__name__}: {error}"
        if isinstance(error, self._errors.TransactionalIdNotFoundError):
            return _UnknownIdError(text)
        if isinstance(error, self._errors.SaslAuthenticationFailedError):
            return ConfigError(f"{text}. Fix: kafka.security_protocol and the credentials")
        if isinstance(error, self._errors.AuthorizationError):
            return ConfigError(f"{text}. Fix: grant the principal {_NEEDS[call]}")
        if isinstance(error, self._errors.UnsupportedVersionError | self._errors.IncompatibleBrokerVersion):
            return ConfigError(f"{text}: the brokers are older than Apache Kafka 3.0 (KIP-664)")
        if call != "connect" and getattr(error, "retriable", False):
            return RetriableError(text)
        if call == "connect":
            return UnavailableError(no_answer(self._settings, error))
        return UnavailableError(f"{text} (bootstrap servers: {self._servers})")


def no_answer(settings: Settings, error: Exception, *, waited_s: float | None = None) -> str:
    """That the cluster is silent: which setting says where it is looked for, and what to look at next."""
    waited = "" if waited_s is None else f" in {waited_s:.0f} s"
    servers, protocol = settings.kafka.bootstrap_servers, settings.kafka.security_protocol
    said = f"Kafka does not answer at {servers} (kafka.bootstrap_servers){waited}: {error}."
    if local := forgotten_local():
        return f"{said} Fix: {local}another address"
    return f"{said} If it is up, is kafka.security_protocol = {protocol} what that listener speaks?"


def _reason(settings: Settings) -> ConfigError | None:
    """Why no connection came about, if the brokers refuse it: kafka-python only says that it took too long."""
    try:
        Admin.of(settings).brokers(_REASON_S)
    except ConfigError as error:
        return error
    except EosError:
        return None
    return None


class _UnknownIdError(EosError):
    """No coordinator knows the transactional.id."""


def _state(name: str, described: Any) -> TransactionDescription:
    state = str(described.state.value)
    return TransactionDescription(
        transactional_id=name,
        state=state,
        producer_id=described.producer_id,
        producer_epoch=described.producer_epoch,
        timeout_ms=described.transaction_timeout_ms,
        # Of a transaction that has ended the coordinator still knows when it began.
        started_ms=described.transaction_start_time_ms if state in _OPEN_STATES else None,
        partitions=frozenset(Partition(p.topic, p.partition) for p in described.topic_partitions),
        coordinator=described.coordinator_id,
    )

"""The tables of settings: each field with its type, its default, and its unit in the name or description."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from eos.base.addresses import checked_servers
from eos.offsets import Partition
from eos.settings.ordinal import parse_ordinal
from eos.shards import NO_GROUP_ID, is_group_id

_DAY_S = 86_400
_MAX_MS = 2_147_483_647  # librdkafka's own upper bound of times


def _lower(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def _upper(value: object) -> object:
    return value.strip().upper() if isinstance(value, str) else value


def _joined(value: object) -> object:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value


def _listed(value: object) -> object:
    """A list from one environment variable: ``a:0,a:1`` or JSON."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)
    return [part.strip() for part in value.split(",") if part.strip()]


def _one_or_three(brokers: int) -> int:
    if brokers not in (1, 3):
        raise ValueError(f"{brokers} brokers are not offered. Fix: 1, or 3 for failover")
    return brokers


def sendable_group(group: str | None) -> str | None:
    """Refuse a group id that could not be committed to."""
    if group is not None and not is_group_id(group):
        raise ValueError(f"{NO_GROUP_ID}. Fix: EOS_GROUP = the job's name")
    return group


def _one_value(value: object) -> object:
    if not isinstance(value, str | int | float):
        raise ValueError(  # noqa: TRY004 - pydantic's way
            f"a client option is text, a number or true/false, not {type(value).__name__}. Fix: give one value"
        )
    return value


Options = dict[str, Annotated[str | int | float | bool, BeforeValidator(_one_value)]]


class Table(BaseModel):
    """A frozen table; its validation errors never print what was given."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class KafkaSettings(Table):
    """How every client of the process reaches the one cluster."""

    bootstrap_servers: Annotated[str, BeforeValidator(_joined), AfterValidator(checked_servers)] = Field(
        default="",
        description="brokers to ask first, host:port[,host:port…] (bootstrap.servers); needed by every command that connects",
    )
    security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"], BeforeValidator(_upper)
    ] = Field(
        default="PLAINTEXT", description="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL (security.protocol)"
    )
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"] | None,
        BeforeValidator(_upper),
    ] = Field(
        default=None,
        description="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI (sasl.mechanism)",
    )
    sasl_username: str | None = Field(default=None, description="user of PLAIN and SCRAM (sasl.username)")
    sasl_password: SecretStr | None = Field(
        default=None, description="password of PLAIN and SCRAM (sasl.password); never printed"
    )
    sasl_password_file: Path | None = Field(default=None, description="mounted file that holds sasl_password")
    ssl_ca_file: Path | None = Field(
        default=None,
        description="certificates of the brokers' authority, PEM (ssl.ca.location); the system's if not given",
    )
    ssl_certificate_file: Path | None = Field(
        default=None, description="this client's certificate, PEM (mTLS; ssl.certificate.location)"
    )
    ssl_key_file: Path | None = Field(
        default=None, description="this client's private key, PEM (mTLS; ssl.key.location)"
    )
    ssl_key_password: SecretStr | None = Field(
        default=None, description="password of ssl_key_file (ssl.key.password); never printed"
    )
    ssl_key_password_file: Path | None = Field(
        default=None, description="mounted file that holds ssl_key_password"
    )
    client: Options = Field(
        default_factory=dict,
        repr=False,
        description="librdkafka options of every client, by their dotted names",
    )
    producer: Options = Field(
        default_factory=dict, repr=False, description="librdkafka options of producers, by their dotted names"
    )
    consumer: Options = Field(
        default_factory=dict, repr=False, description="librdkafka options of consumers, by their dotted names"
    )


class TransactionSettings(Table):
    """When a transaction ends, and how long it may live."""

    timeout_ms: int = Field(
        default=60_000,
        ge=1_000,
        le=_MAX_MS,
        description="milliseconds after which the coordinator aborts an open transaction "
        "(transaction.timeout.ms; at most the broker's transaction.max.timeout.ms)",
    )
    interval_ms: int = Field(
        default=100,
        ge=1,
        description="milliseconds from a transaction's first record to its commit (commit.interval.ms of Kafka Streams); while the job "
        "is behind, from its begin, and up to three times as long where commits take long",
    )
    max_records: int = Field(
        default=100_000, ge=1, description="input records after which a transaction ends"
    )
    max_bytes: int = Field(
        default=64 * 1024 * 1024, ge=1, description="bytes of output after which a transaction ends"
    )
    fence_every: Annotated[Literal["suspicion", "transaction"], BeforeValidator(_lower)] = Field(
        default="suspicion",
        description="when the producer is rebuilt: 'suspicion' (a resend cannot be excluded) or 'transaction' "
        "(each one gets an epoch of its own, at about 60 milliseconds; 500 for a TransactionalProducer)",
    )
    accept_unclean_leader_election: bool = Field(
        default=False,
        description="true: write to topics with unclean.leader.election.enable = true, whose committed records and whose "
        "transactions' markers an election can remove",
    )
    commit_deadline_ms: int | None = Field(
        default=None,
        ge=1,
        description="milliseconds after which an unanswered commit counts as unknown and is resolved by the "
        "committed offsets; timeout_ms if not given",
    )

    @property
    def timeout_s(self) -> float:
        return self.timeout_ms / 1000

    @property
    def interval_s(self) -> float:
        return self.interval_ms / 1000

    @property
    def commit_timeout_s(self) -> float:
        """A commit may first have to deliver what is queued, and that ends with the transaction's timeout."""
        return (self.commit_deadline_ms or self.timeout_ms) / 1000


class OwnershipSettings(Table):
    """Which input partitions are this instance's, and what proves it."""

    mode: Annotated[Literal["group", "partition"], BeforeValidator(_lower)] = Field(
        default="group",
        description="'group': Kafka assigns the partitions; 'partition': they are given, by list or by count",
    )
    protocol: Annotated[Literal["cooperative", "consumer"], BeforeValidator(_lower)] = Field(
        default="cooperative",
        description="group protocol (group.protocol): 'cooperative' (classic, incremental) or 'consumer' (KIP-848)",
    )
    ordinal: Annotated[int | None, BeforeValidator(parse_ordinal)] = Field(
        default=None,
        description="number of this instance, the same for its replacement: 0, 1, 2 …, a StatefulSet host name "
        "(refunds-3), or 'hostname' for the name of this host; EOS_ORDINAL for short",
    )
    instances: int | None = Field(
        default=None,
        ge=1,
        description="number of instances, each of which has workers.count processes; with mode 'partition', worker i of an instance "
        "owns partition p where p mod (instances x workers.count) = ordinal x workers.count + i",
    )
    partitions: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        default=(), description="the partitions of this instance with mode 'partition', as topic:number"
    )
    max_partitions: int = Field(
        default=100,
        ge=1,
        description="partitions that one process takes with mode 'partition', each with clients of its own (some 3 MB, 15 threads "
        "and 21 file descriptors); with more it ends with exit code 2",
    )
    session_timeout_ms: int = Field(
        default=10_000,
        ge=1_000,
        le=3_600_000,
        description="milliseconds of silence after which the group drops a member (session.timeout.ms; protocol 'cooperative': "
        "KIP-848 takes the broker's figure)",
    )
    max_poll_interval_ms: int = Field(
        default=300_000,
        ge=1_000,
        le=86_400_000,
        description="milliseconds between polls after which a member counts as stuck and is dropped (max.poll.interval.ms): more than "
        "the slowest record's transform takes",
    )
    static_membership: bool = Field(
        default=True,
        description="true: a replacement under the same ordinal takes over without waiting for the session timeout (group.instance.id; "
        "protocol 'cooperative')",
    )
    adopt_offsets: bool = Field(
        default=False,
        description="true, for one start: accept the offsets that the other ownership mode, another job, or another program than eos "
        "committed",
    )

    @property
    def owned_partitions(self) -> tuple[Partition, ...]:
        return tuple(parse_partition(text) for text in self.partitions)


def parse_partition(text: str) -> Partition:
    """``topic:number`` as a partition.

    Raises:
        ValueError: it is not of that form.
    """
    topic, colon, number = text.rpartition(":")
    if not (topic and colon and number.isascii() and number.isdigit()):
        raise ValueError(f"{text!r} is not a partition (topic:number)")
    return Partition(topic, int(number))


class InputSettings(Table):
    """How input is read."""

    start: Annotated[Literal["fail", "earliest", "latest"], BeforeValidator(_lower)] = Field(
        default="fail",
        description="where a group without offsets begins, as auto.offset.reset says it; applied once. An 'earliest' left in a "
        "configuration replays everything after the offsets have expired",
    )
    fetch_records: int = Field(
        default=1_000, ge=1, description="records per call to the consumer at most (max.poll.records)"
    )
    recommit_idle_after_s: int = Field(
        default=_DAY_S,
        ge=1,
        le=_DAY_S,
        description="seconds after which offsets are committed again where they stand, since Kafka forgets them (the brokers' "
        "offsets.retention.minutes): those of idle partitions, and the ledger of a streaming query",
    )
    held_back_deadline_ms: int | None = Field(
        default=None,
        ge=1,
        description="milliseconds that --until-caught-up waits for a transaction of another writer that holds input back; "
        "transaction.timeout_ms and 15 seconds if not given. Writers may have longer timeouts, up to the brokers' "
        "transaction.max.timeout.ms",
    )
    stall_timeout_ms: int = Field(
        default=120_000,
        ge=1_000,
        le=_MAX_MS,
        description="milliseconds after which a partition that holds records and brings none, though its leader answers, "
        "ends the job (exit code 5)",
    )

    offline_timeout_ms: int = Field(
        default=900_000,
        ge=1_000,
        le=_MAX_MS,
        description="milliseconds after which a consumer that is connected to no broker, or has no place in its group, ends the job "
        "(exit code 5): a client may have lost all brokers for good. So does a run that catches up and gets no answer to how far the group is",
    )

    @property
    def stall_timeout_s(self) -> float:
        return self.stall_timeout_ms / 1000

    @property
    def offline_timeout_s(self) -> float:
        return self.offline_timeout_ms / 1000


class PoisonSettings(Table):
    """What happens to a record whose transform raises, or ends the process."""

    policy: Annotated[Literal["stop", "dead-letter", "skip"], BeforeValidator(_lower)] = Field(
        default="stop",
        description="'stop', 'dead-letter' (to the job's topic, in the transaction) or 'skip' (Kafka Streams' "
        "processing.exception.handler)",
    )
    max_in_a_row: int = Field(
        default=1_000,
        ge=1,
        description="records in a row, of those that one owner reads and its next one goes on with, that may be poison; one more "
        "stops the job under every policy, for it is the transform that is wrong then",
    )
    max_deaths: int = Field(
        default=3,
        ge=0,
        le=9_999,
        description="processes in a row that may die (out of memory, a crash of native code, killed) with one record alone before "
        "poison.policy decides on it; 0: deaths are not counted",
    )
    max_died_in_a_row: int = Field(
        default=10,
        ge=1,
        description="records in a row that may be poison where the next one is left to poison.policy for its deaths; behind so many "
        "it stops the job under every policy, for each of them costs several processes, and it is the transform that is wrong then",
    )
    transform_timeout_ms: int | None = Field(
        default=None,
        ge=100,
        le=_MAX_MS,
        description="milliseconds after which `eos run` kills a worker whose transform has not returned from the records of one "
        "fetch, which counts as a death: more than those may take; never if not given",
    )


class WorkerSettings(Table):
    """Processes on this machine."""

    count: int = Field(
        default=1, ge=1, le=1_000, description="processes; the ordinal of process i is ordinal x count + i"
    )
    max_restarts: int = Field(
        default=8,
        ge=0,
        description="restarts in a row of a process that a signal has ended, before all stop; counted anew behind a record that "
        "poison.policy has decided on for its deaths",
    )
    restart_backoff_ms: int = Field(
        default=500,
        ge=0,
        description="milliseconds before the second restart in a row (the first is at once); at least doubles with "
        "each, to 30 seconds at most",
    )
    spare: bool = Field(
        default=True,
        description="keep one more process, which has imported the job's module and waits to replace a worker that dies",
    )


class ShutdownSettings(Table):
    """How the process ends."""

    grace_ms: int = Field(
        default=30_000, ge=1, description="milliseconds to finish or abort the open transaction after SIGTERM"
    )

    @property
    def grace_s(self) -> float:
        return self.grace_ms / 1000


class ObserveSettings(Table):
    """What operators see."""

    http_host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="address of the job's page, /metrics, /healthz and /readyz",
    )
    http_port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="port of the job's page, /metrics, /healthz and /readyz; 0 chooses a free one, not given is none",
    )
    log_format: Annotated[Literal["auto", "human", "json"], BeforeValidator(_lower)] = Field(
        default="auto", description="'human', 'json', or 'auto': human on a terminal, JSON otherwise"
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = Field(
        default="info", description="'debug', 'info', 'warning' or 'error'"
    )
    termination_log: Path | None = Field(
        default=Path("/dev/termination-log"),
        description="where the error that ends a process also goes, if that file is there (Kubernetes shows it)",
    )
    record_errors: Annotated[Literal["auto", "show", "hide"], BeforeValidator(_lower)] = Field(
        default="auto",
        description="whether logs show the texts of exceptions that a transform raised, which may quote records: 'show', 'hide', "
        "or 'auto': on a terminal and at log_level = 'debug'",
    )


class SparkSettings(Table):
    """What runs of eos.spark need beyond the rest."""

    max_records_per_partition: int | None = Field(
        default=None,
        ge=1,
        description="offsets that one batch run takes from an input partition at most (of all together it is Spark's "
        "maxOffsetsPerTrigger); all that there are if not given. It bounds what a transaction holds",
    )
    twin_wait_ms: int | None = Field(
        default=None,
        ge=1,
        description="milliseconds that a task that was fenced by its twin (a retry, a speculative copy) waits for the "
        "twin's commit before it fails; transaction.timeout_ms if not given; a retry waits 3 seconds at most",
    )
    sink_shards: int = Field(
        default=4,
        ge=1,
        le=1_000,
        description="transactions that each batch of a streaming query is divided into; in place (docs/reference/spark-in-place.md) it has one for "
        "each input partition, if these are no more. A change holds from the next batch on",
    )
    client: Options = Field(
        default_factory=dict,
        repr=False,
        description="Java Kafka client options of Spark's source, by their dotted names, for what [kafka.client] "
        "cannot say to Java",
    )


class SqlSettings(Table):
    """The database that holds the rows of a job, or its outbox."""

    url: SecretStr | None = Field(
        default=None,
        description="where the database is, as SQLAlchemy writes it: postgresql://USER:PASSWORD@HOST/DATABASE or "
        "sqlite:///FILE; never printed",
    )
    url_file: Path | None = Field(default=None, description="mounted file that holds url")


class LocalSettings(Table):
    """The Kafka of this machine, for the demo and for tests."""

    directory: Path = Field(default=Path(".eos"), description="directory of its jars, data and logs")
    brokers: Annotated[int, AfterValidator(_one_or_three)] = Field(default=1, description="brokers: 1 or 3")
    kafka_home: Path | None = Field(
        default=None, description="an unpacked Kafka to use instead of fetched jars"
    )
    jars: Path | None = Field(
        default=None, description="where fetched jars are kept, for several directories to share"
    )

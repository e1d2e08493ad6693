"""Preflight: whether a cluster offers what a job needs, asked before its first transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeVar

from eos.base.calls import Call
from eos.base.commands import started, suggested
from eos.base.deadline import Deadline
from eos.base.listing import counted
from eos.errors import ConfigError, EosError
from eos.group.metadata import OwnershipMode
from eos.group.topics import known_topics
from eos.guards.owners import refuse_members
from eos.identity import Identity
from eos.job import Declaration
from eos.kafka.admin import Admin, TopicShape
from eos.kafka.api_versions import ApiVersions
from eos.ops.check.grants import INTERNAL_TOPICS
from eos.ops.check.reach import await_brokers
from eos.ops.check.transactions import TransactionsView
from eos.ops.positions import check_kept
from eos.retry import resume
from eos.settings import Settings

T = TypeVar("T")

# KIP-447 came with 2.5: offsets that are only read when stable (OffsetFetch 7) and offset commits that carry the
# member's generation (TxnOffsetCommit 3). librdkafka falls back to older requests without a word, and then a new
# owner reads offsets that a pending transaction is about to move, and a dead member is not fenced. KIP-360 came with
# it too: a producer recovers from a failed delivery by a new epoch (InitProducerId 3).
OLDEST_BROKER = "2.5"
_NEEDED_REQUESTS = {"OffsetFetch": 7, "TxnOffsetCommit": 3, "InitProducerId": 3}

# KIP-890, part 1: a leader asks the transaction coordinator before it takes a transaction's first records. Without, a record
# of an aborted transaction that arrives late, after the next init, is committed with the next transaction (measured).
VERIFYING_BROKER = "3.6"
# The same for the offsets of a transaction (KAFKA-15449): OffsetCommit 9 came with it.
_OFFSETS_VERIFYING_BROKER = "3.7"
_NEWEST_OFFSET_COMMIT = 9
_VERIFICATION = "transaction.partition.verification.enable"

_UNCLEAN = "unclean.leader.election.enable"
_TIERED = "remote.storage.enable"
# KIP-1163, not in a release of Apache Kafka yet; the second is its name in Inkless before. Such topics take no transactions.
_DISKLESS = ("diskless.enable", "inkless.enable")
# Every broker of Apache Kafka since 0.11 has the first; settings that begin so are of others that speak its protocol.
_OF_APACHE_KAFKA = "transaction.state.log.min.isr"
_OF_OTHERS = {
    "confluent.": "Confluent Server",
    "automq.": "AutoMQ",
    "s3.": "AutoMQ",
    "inkless.": "Inkless",
    "diskless.": "a Kafka with diskless topics",
    "redpanda.": "Redpanda",
}

_MAX_TIMEOUT = "transaction.max.timeout.ms"
_RETENTION = "offsets.retention.minutes"
_KEPT_FOR_MINUTES = 7 * 24 * 60
_SAFE_REPLICAS = 3
_SAFE_IN_SYNC = 2

# How long a new topic may be missing, in seconds: the one that was asked may be behind the others.
_APPEAR_S, _APPEAR_ALONE_S = 3.0, 0.3


def preflight(
    job: Declaration,
    settings: Settings,
    *,
    timeout_s: float = 30.0,
    one_machine: bool = False,
    create: str = "",
) -> list[str]:
    """Refuse to start where cluster or database do not fit; return warnings about what is less safe than it could be.

    It only reads. What the principal may not see (ACL DescribeConfigs) is not checked, and a warning says so. On
    ``one_machine``, to try things out, there is no warning of too few replicas. ``create``: the command that makes missing topics.

    Raises:
        UnavailableError: no broker answered in time.
        ConfigError: topics are missing, the brokers are too old or allow no such transaction.timeout_ms, credentials are refused, an output
            is diskless or has unclean leader elections, a group owned by partition has or had members, or `check_kept` refuses.
    """
    deadline, known = Deadline(timeout_s), job.identity(settings)
    cluster = _Cluster(settings, deadline)
    brokers = cluster.brokers()
    topics = sorted({*known.read, *known.outputs})
    shapes = known_topics(
        cluster.admin,
        topics,
        timeout_s=deadline.left_s,
        appear_s=_APPEAR_S if len(brokers) > 1 else _APPEAR_ALONE_S,
        hidden=INTERNAL_TOPICS,
    )
    if missing := [topic for topic in topics if topic not in shapes]:
        names = ", ".join(missing)
        commands = _how_to_create(missing, known, settings, shapes, len(brokers))
        local = f"eos local topics {started().job}"
        fix = f"Fix: {create}" if create else f"Fix, on a Kafka of `eos local`: {local}; elsewhere:{commands}"
        raise ConfigError(f"topics of the job {known.app!r} do not exist: {names}. {fix}")
    if settings.ownership.mode == "partition":
        refuse_members(cluster.admin, known.group, OwnershipMode.PARTITION, timeout_s=deadline.left_s)
    return [
        *check_kept(settings, known, timeout_s=deadline.left_s),
        *_broker_limits(settings, cluster, brokers),
        *_broker_version(settings, cluster, deadline),
        *_durability(known, settings, cluster, shapes, one_machine=one_machine),
    ]


class _Cluster:
    """The admin client under one deadline."""

    def __init__(self, settings: Settings, deadline: Deadline) -> None:
        self._settings = settings
        self._versions = ApiVersions()
        self.admin = Admin.of(settings, self._versions.options)
        self._deadline = deadline

    def brokers(self) -> tuple[int, ...]:
        return await_brokers(self._settings, timeout_s=self._deadline.left_s, admin=self.admin)

    def understood(self) -> Mapping[str, int]:
        """The newest version of each request that the brokers understand; empty if librdkafka has not said it."""
        self.admin.serve_log()
        return self._versions.newest

    def ask(self, question: Callable[[float], T], slice_s: float = 5.0) -> T:
        return resume(Call.METADATA, question, deadline=self._deadline, slice_s=slice_s)


def _how_to_create(
    missing: Collection[str],
    job: Identity,
    settings: Settings,
    shapes: Mapping[str, TopicShape],
    brokers: int,
) -> str:
    # As many partitions as the input has is the usual choice; without an input the brokers' default decides.
    partitions = max((shapes[topic].partitions for topic in job.inputs if topic in shapes), default=0)
    options = f"--bootstrap-server {settings.kafka.bootstrap_servers}"
    if settings.kafka.security_protocol != "PLAINTEXT":
        options += " --command-config client.properties"
    shape = f"--partitions {partitions} " if partitions else ""
    shape += f"--replication-factor {min(_SAFE_REPLICAS, max(1, brokers))}"
    return "".join(f"\n  kafka-topics.sh {options} --create --topic {topic} {shape}" for topic in missing)


def check_transaction_timeout(timeout_ms: int, limit_ms: int) -> None:
    """Refuse a timeout that init_transactions would answer with a fatal INVALID_TRANSACTION_TIMEOUT."""
    if timeout_ms > limit_ms:
        raise ConfigError(
            f"transaction.timeout_ms: {timeout_ms} is above the brokers' {_MAX_TIMEOUT} = {limit_ms}. Fix: at most "
            f"{limit_ms}, or raise {_MAX_TIMEOUT} on every broker"
        )


def _broker_limits(settings: Settings, cluster: _Cluster, brokers: Collection[int]) -> Iterator[str]:
    configs = cluster.ask(lambda left: cluster.admin.broker_configs(brokers, left))
    limits = [int(config[_MAX_TIMEOUT]) for config in configs.values() if _MAX_TIMEOUT in config]
    if limits:
        check_transaction_timeout(settings.transaction.timeout_ms, min(limits))
    kept = [int(config[_RETENTION]) for config in configs.values() if _RETENTION in config]
    if kept and min(kept) < _KEPT_FOR_MINUTES:
        yield (
            f"{_RETENTION} = {min(kept)}: the brokers forget offsets sooner than Kafka's default, 7 days. eos relies on "
            f"7 days when it commits offsets again, and when it decides whether a partition is new. Fix: {_KEPT_FOR_MINUTES}"
        )
    yield from late_request_risks(configs)
    yield from other_makes(configs)
    if len(limits) < len(brokers):
        yield (
            f"{_MAX_TIMEOUT} could not be read from every broker (ACL DescribeConfigs on the cluster; `{_grants()}`), "
            f"so transaction.timeout_ms = {settings.transaction.timeout_ms} is only checked by the first "
            f"transaction, and {_VERIFICATION} not at all"
        )


def _grants() -> str:
    return suggested("acl show", "--for", "preflight", job=True)


def late_request_risks(configs: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """What is said of brokers, by id, that take a late record for one of the next transaction."""
    said = {
        broker: config.get(_VERIFICATION, f"none, as before Apache Kafka {VERIFYING_BROKER}")
        for broker, config in configs.items()
    }
    for value in sorted(set(said.values()) - {"true"}):
        brokers = ", ".join(sorted(broker for broker, of_broker in said.items() if of_broker == value))
        yield (
            f"{_VERIFICATION} = {value} (broker {brokers}): a record of an aborted transaction that arrives late can be "
            "committed with the next one, and its input is processed again: a duplicate. Fix: Apache Kafka "
            f"{VERIFYING_BROKER} or newer, and the setting's default, true"
        )


def other_makes(configs: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """What is said of brokers that are not Apache Kafka, by their settings; one that shows none is not judged."""
    makes = set()
    for config in configs.values():
        found = {
            make for prefix, make in _OF_OTHERS.items() if any(name.startswith(prefix) for name in config)
        }
        if config and not found and _OF_APACHE_KAFKA not in config:
            found = {f"another make, which has no setting {_OF_APACHE_KAFKA}"}
        makes |= found
    if makes:
        yield (
            f"the brokers are not Apache Kafka, but {', '.join(sorted(makes))}: eos is tested with Apache Kafka only, and what it "
            "guarantees rests on how transactions are carried out there. Fix: try your job's accidents on such a cluster, and "
            "`eos verify` its output regularly"
        )


def _broker_version(settings: Settings, cluster: _Cluster, deadline: Deadline) -> Iterator[str]:
    try:
        understood = cluster.understood()
        if not understood:  # another version of librdkafka, which writes other lines
            with TransactionsView(settings, timeout_s=deadline.left_s) as view:
                understood = view.api_versions()
    except EosError as error:
        # librdkafka has just talked to these brokers: what failed is this second client, which is no reason to stop.
        yield f"the brokers' version could not be checked, and Apache Kafka {OLDEST_BROKER} or newer is needed: {error}"
        return
    check_broker_version(understood)
    yield from late_offsets_risk(understood)


def late_offsets_risk(understood: Mapping[str, int]) -> Iterator[str]:
    """What is said of brokers, by the newest version of each request, that take late offsets for those of the next transaction."""
    if understood.get("OffsetCommit", _NEWEST_OFFSET_COMMIT) < _NEWEST_OFFSET_COMMIT:
        yield (
            f"a broker is older than Apache Kafka {_OFFSETS_VERIFYING_BROKER}: offsets of a transaction that arrive late can stay "
            "open, and a job whose offsets are not stable does not start (exit code 5). Fix: Apache Kafka "
            f"{_OFFSETS_VERIFYING_BROKER} or newer"
        )


def check_broker_version(understood: Mapping[str, int]) -> None:
    """Refuse a broker older than `OLDEST_BROKER`, by the newest version of each request that it understands."""
    lacking = [
        f"{request} {understood.get(request, 'none')} < {needed}"
        for request, needed in _NEEDED_REQUESTS.items()
        if understood.get(request, -1) < needed
    ]
    if lacking:
        raise ConfigError(
            f"the brokers are older than Apache Kafka {OLDEST_BROKER} ({', '.join(lacking)}), and without KIP-447 "
            "exactly-once has no fence. Fix: upgrade the brokers"
        )


def _durability(
    job: Identity,
    settings: Settings,
    cluster: _Cluster,
    shapes: Mapping[str, TopicShape],
    *,
    one_machine: bool,
) -> list[str]:
    written = sorted({*job.outputs, *(topic for topic in INTERNAL_TOPICS if topic in shapes)})
    configs = cluster.ask(lambda left: cluster.admin.topic_configs({*written, *job.read}, left))
    accepted = settings.transaction.accept_unclean_leader_election
    refuse_unfit_outputs({t: configs.get(t, {}) for t in job.outputs}, accept_unclean=accepted)
    unseen = [topic for topic in written if not configs.get(topic)]
    topics_of: dict[str, list[str]] = {}
    for topic in written:
        is_output = topic not in INTERNAL_TOPICS
        shape = None if one_machine else shapes[topic]
        for risk in topic_risks(shape, configs.get(topic, {}), is_output=is_output):
            topics_of.setdefault(risk, []).append(topic)
    warnings = [f"{', '.join(topics)}: {risk}" for risk, topics in topics_of.items()]
    warnings += tiered_inputs({topic: configs.get(topic, {}) for topic in job.read})
    if unseen:
        warnings.append(
            f"{', '.join(unseen)}: min.insync.replicas could not be read (ACL DescribeConfigs; `{_grants()}`)"
        )
    return warnings


def refuse_unfit_outputs(configs: Mapping[str, Mapping[str, str]], *, accept_unclean: bool) -> None:
    """Refuse output topics, by name with their configuration as far as it is seen, that can't keep a transaction.

    Raises:
        ConfigError: names the topics and the fix.
    """
    diskless = {
        topic: name for topic, one in configs.items() for name in _DISKLESS if one.get(name) == "true"
    }
    if diskless:
        raise ConfigError(
            f"{', '.join(sorted(diskless))}: {min(diskless.values())} = true, and diskless topics take no transactions. "
            "Fix: an output topic without it"
        )
    unclean = sorted(topic for topic, one in configs.items() if one.get(_UNCLEAN) == "true")
    if unclean and not accept_unclean:
        raise ConfigError(
            f"{', '.join(unclean)}: {_UNCLEAN} = true: a replica that lags may become leader, and then committed records are "
            "gone, or the marker that ends a transaction, behind which no read_committed reader gets on (KAFKA-20716). Fix: "
            + "; ".join(
                f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config {_UNCLEAN}=false"
                for topic in unclean
            )
            + "; or accept it: transaction.accept_unclean_leader_election = true"
        )


def tiered_inputs(configs: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """What is said of input topics in tiered storage."""
    if tiered := sorted(topic for topic, one in configs.items() if one.get(_TIERED) == "true"):
        yield (
            f"{', '.join(tiered)}: {_TIERED} = true: old input is read from tiered storage, where read_committed readers have "
            "failed before. eos is not tested with it. Fix: keep up with the input, so that it is read from the brokers' disks "
            "(local.retention.ms)"
        )


def topic_risks(
    shape: TopicShape | None, config: Mapping[str, str], *, is_output: bool = True
) -> Iterator[str]:
    """What about a topic makes committed records less safe, or verification impossible.

    The configuration is empty if it could not be seen. The brokers' own topics, no outputs, are compacted by design. Without
    a shape nothing is said of replicas.
    """
    if shape is not None:
        yield from _replica_risks(shape, config)
    if config.get(_UNCLEAN) == "true":
        yield (
            f"{_UNCLEAN} = true: a replica that lags may become leader and drop committed records. Fix: false"
        )
    if is_output and "compact" in config.get("cleanup.policy", ""):
        yield "compacted: older records of a key disappear, which `eos verify` reports as lost. Fix: cleanup.policy=delete"


def _replica_risks(shape: TopicShape, config: Mapping[str, str]) -> Iterator[str]:
    if shape.replicas < _SAFE_REPLICAS:
        yield (
            f"{counted(shape.replicas, 'replica')}: a broker's disk that is lost takes committed records with it. Fix: "
            f"replication factor {_SAFE_REPLICAS}"
        )
    in_sync = int(config.get("min.insync.replicas", _SAFE_IN_SYNC))
    if in_sync < _SAFE_IN_SYNC:
        yield (
            f"min.insync.replicas = {in_sync}: one broker alone may confirm a commit and then fail. Fix: "
            f"{_SAFE_IN_SYNC}"
        )

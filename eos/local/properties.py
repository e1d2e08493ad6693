"""Render the server properties of a broker for a small machine.

Names and defaults: https://kafka.apache.org/42/configuration/broker-configs/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from eos.errors import ConfigError
from eos.local.ports import HOST, NodePorts

# What the cluster itself depends on to find its brokers again. Everything else may be set by the user.
_OURS = frozenset(
    {
        "advertised.listeners",
        "broker.id",
        "controller.listener.names",
        "controller.quorum.bootstrap.servers",
        "controller.quorum.voters",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "listeners",
        "log.dir",
        "log.dirs",
        "metadata.log.dir",
        "node.id",
        "process.roles",
    }
)
_RELIABLE_BROKERS = 3  # from here on, topics have 3 replicas, of which 2 must be in sync


def check_extra(extra: Mapping[str, str]) -> None:
    """Refuse properties that would cut the cluster off from its own brokers.

    Raises:
        ConfigError: names them.
    """
    if refused := sorted(_OURS & extra.keys()):
        raise ConfigError(
            f"properties {', '.join(refused)}: local Kafka sets these itself. Fix: leave them out."
        )


def server_properties(
    node_id: int,
    nodes: Mapping[int, NodePorts],
    data: Path,
    extra: Mapping[str, str],
    protocols: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The properties of one node of a cluster whose nodes are brokers and controllers at once.

    Args:
        node_id: which of ``nodes``.
        nodes: the ports of all nodes, by node id.
        data: the directory of the node's logs.
        extra: properties that override the ones chosen here.
        protocols: the security protocols of the nodes' further listeners, by name.
    """
    ports = nodes[node_id]
    bound = [f"PLAINTEXT://{HOST}:{ports.client}", f"CONTROLLER://{HOST}:{ports.controller}"]
    advertised = [f"PLAINTEXT://{HOST}:{ports.client}"]
    if ports.proxied is not None:
        bound.append(f"PROXY://{HOST}:{ports.proxied}")
        advertised.append(f"PROXY://{HOST}:{ports.proxy}")
    others = [f"{name}://{HOST}:{port}" for name, port in ports.others.items()]
    security = {
        "PLAINTEXT": "PLAINTEXT",
        "CONTROLLER": "PLAINTEXT",
        "PROXY": "PLAINTEXT",
        **(protocols or {}),
    }
    chosen = {
        "node.id": node_id,
        "process.roles": "broker,controller",
        "controller.quorum.voters": ",".join(f"{i}@{HOST}:{nodes[i].controller}" for i in sorted(nodes)),
        "listeners": ",".join([*bound, *others]),
        "advertised.listeners": ",".join([*advertised, *others]),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": ",".join(f"{name}:{one}" for name, one in security.items()),
        "log.dirs": data,
    }
    placed = {name: str(value) for name, value in chosen.items()}
    return placed | small_cluster(len(nodes)) | dict(extra)


def heap_mb_for(brokers: int) -> int:
    """The heap of each broker of a cluster of that many, in MiB."""
    return 512 if brokers == 1 else 384


def small_cluster(brokers: int) -> dict[str, str]:
    """What suits a cluster of that many brokers on a small machine, wherever they run: all but ids and listeners."""
    replicas = 3 if brokers >= _RELIABLE_BROKERS else 1
    in_sync = 2 if replicas > 1 else 1
    chosen = {
        # A typo in a topic's name should fail, not make a topic with one partition.
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        # 50 partitions each are the defaults: many small files, and seconds at each start and failover.
        "offsets.topic.num.partitions": 3,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": 3,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        # The first member of a group need not wait for others; and members of tests die young.
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1_000,
        # The interval (default 10 s) is how late an abandoned transaction may be aborted after its timeout.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
        "transaction.max.timeout.ms": 900_000,
        # Retention goes by the records' own timestamps: generated input of last year would vanish at once.
        "log.retention.ms": -1,
        # A killed broker that comes back is refused, once a second, until the session of its previous process has
        # expired (DUPLICATE_BROKER_REGISTRATION): with the default of 9 s a restart took 12 s. Three brokers
        # share the machine's cores, and a starved one must not be fenced for it.
        "broker.session.timeout.ms": 3_000 if brokers == 1 else 6_000,
        "broker.heartbeat.interval.ms": 500 if brokers == 1 else 1_000,
        # The compacting cleaner takes this from the heap at start; the default is 128 MB.
        "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
    }
    return {name: str(value) for name, value in chosen.items()}


def render(properties: Mapping[str, str]) -> str:
    """The text of a Java properties file (java.util.Properties.load)."""
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in properties.items())


def parse(text: str) -> dict[str, str]:
    """The plain ``name=value`` lines of a properties file that Kafka wrote."""
    lines: Sequence[str] = [line.strip() for line in text.splitlines()]
    pairs = (line.partition("=") for line in lines if line and not line.startswith(("#", "!")))
    return {name.strip(): value.strip() for name, _, value in pairs}


def log4j_properties(log_file: Path) -> str:
    """The logging configuration of a broker: one file that rolls, without the dumps of its configuration."""
    pattern = "[%d] %p %m (%c{1})%n"
    return render(
        {
            "status": "error",
            "appender.file.type": "RollingFile",
            "appender.file.name": "File",
            "appender.file.fileName": str(log_file),
            "appender.file.filePattern": f"{log_file}.%i",
            "appender.file.layout.type": "PatternLayout",
            "appender.file.layout.pattern": pattern,
            "appender.file.policies.type": "Policies",
            "appender.file.policies.size.type": "SizeBasedTriggeringPolicy",
            "appender.file.policies.size.size": "20MB",
            "appender.file.strategy.type": "DefaultRolloverStrategy",
            "appender.file.strategy.max": "2",
            "rootLogger.level": "INFO",
            "rootLogger.appenderRef.file.ref": "File",
            "logger.config.name": "org.apache.kafka.common.config.AbstractConfig",
            "logger.config.level": "WARN",
        }
    )


def _escaped(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return "\\" + escaped if escaped.startswith(" ") else escaped

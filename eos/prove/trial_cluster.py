"""Trial cluster: one of its own, with a proxy before each broker and the job's topics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from eos.kafka.config import client_config
from eos.kafka.topics import create_topics
from eos.local import QUICK_START, LocalKafka
from eos.local.ports import HOST, free_port
from eos.prove.job_processes import on_cluster
from eos.prove.trial import Trial
from eos.settings import Settings
from eos.testing.proxy import HoldProxy

_PROPERTIES = {"log.cleaner.backoff.ms": "500"}  # input that is compacted is not waited for, 15 s by default


class TrialCluster(NamedTuple):
    """Where a trial takes place.

    Attributes:
        cluster: its brokers.
        proxies: one before each, for the job.
        settings: the job's, at the brokers' own addresses.
    """

    cluster: LocalKafka
    proxies: list[HoldProxy]
    settings: Settings

    @property
    def servers(self) -> str:
        """Where the job finds the cluster."""
        return ",".join(f"{HOST}:{proxy.port}" for proxy in self.proxies)


@contextmanager
def trial_cluster(trial: Trial, settings: Settings) -> Iterator[TrialCluster]:
    """Start it; it ends with the block.

    Raises:
        ConfigError: the machine does not allow it.
        UnavailableError: the cluster did not start.
    """
    ports: list[int] = []
    for _ in range(trial.brokers):
        ports.append(free_port(set(ports)))
    cluster = LocalKafka(
        trial.directory / "kafka",
        trial.brokers,
        jars=trial.jars,
        jvm_options=QUICK_START,
        proxy_ports=ports,
        properties=_PROPERTIES,
    )
    with ExitStack() as stack:
        stack.enter_context(cluster)
        upstream = cluster.proxied_listeners
        proxies = [stack.enter_context(HoldProxy(port, upstream[port])) for port in ports]
        direct = on_cluster(settings, cluster.bootstrap_servers)
        topics = dict.fromkeys((*trial.job.read, *trial.job.outputs), trial.partitions)
        create_topics(client_config(direct), topics, replicas=trial.brokers)
        yield TrialCluster(cluster, proxies, direct)

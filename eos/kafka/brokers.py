"""Ask a broker which brokers of its cluster are alive."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from eos.base.addresses import address
from eos.base.threads import made_beside
from eos.kafka.config import QUICKLY


class ClusterMetadata(NamedTuple):
    """The cluster's id, and the ports of the brokers that are registered and unfenced, by broker id."""

    cluster_id: str
    ports: dict[int, int]


def ask(host: str, port: int, timeout_s: float) -> ClusterMetadata | None:
    """The cluster of the broker at that address, or None if no Kafka broker answers there within ``timeout_s``.

    librdkafka may put the second question, for the cluster, to another broker of it.
    """
    # A client for each question: one that is kept would not come back to this address. Silent, because a broker that is
    # starting refuses connections.
    client = made_beside(
        lambda: AdminClient({**QUICKLY, "bootstrap.servers": address(host, port), "log_level": 0})
    )
    try:
        seen = client.list_topics(timeout=timeout_s)
    except KafkaException:
        return None
    return ClusterMetadata(str(seen.cluster_id), {broker.id: broker.port for broker in seen.brokers.values()})

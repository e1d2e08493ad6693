"""Real Apache Kafka on this machine, from its published jars."""

from eos.local.cluster import QUICK_START, Broker, LocalKafka

__all__ = ["QUICK_START", "Broker", "LocalKafka"]

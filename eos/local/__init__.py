"""Real Apache Kafka on this machine, from its published jars; Spark and PostgreSQL, from what pip has installed."""

from eos.local.cluster import QUICK_START, Broker, LocalKafka
from eos.local.postgres import LocalPostgres
from eos.local.spark_cluster import LocalSpark

__all__ = ["QUICK_START", "Broker", "LocalKafka", "LocalPostgres", "LocalSpark"]

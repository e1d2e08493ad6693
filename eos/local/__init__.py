"""Real Apache Kafka on this machine, from its published jars; and a Spark cluster, from the installed PySpark."""

from eos.local.cluster import QUICK_START, Broker, LocalKafka
from eos.local.spark_cluster import LocalSpark

__all__ = ["QUICK_START", "Broker", "LocalKafka", "LocalSpark"]

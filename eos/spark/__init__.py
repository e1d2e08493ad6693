"""Exactly-once batches and streams on Spark: output records and input offsets in one Kafka transaction.

Importing `eos` needs neither PySpark nor Java; this package needs both: ``pip install 'eos-kafka[spark]'``.
"""

"""Which librdkafka runs here."""

from __future__ import annotations

from confluent_kafka import libversion


def librdkafka_version() -> str:
    """The version of the librdkafka that confluent-kafka has bundled, for example ``2.16.0``."""
    return str(libversion()[0])

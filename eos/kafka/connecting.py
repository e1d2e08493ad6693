"""How clients that are opened to ask, or to own a shard, come by their first connection without librdkafka's waits."""

from __future__ import annotations

from collections.abc import Mapping

QUICKLY: Mapping[str, str | int] = {
    # A client drops its bootstrap connection once it knows the brokers, and connects to one of them no sooner than half
    # of this later (sparse connections in rdkafka_conf.c). librdkafka's 100 ms made each client wait 50 ms before its
    # first question (measured: 58 ms to the first answer, now 17). Retries still grow to 10 s.
    "reconnect.backoff.ms": 20,
    # With its default, rebootstrap, a consumer whose brokers are all gone connects anew without any backoff: 150 refused
    # connections a second, 40 with librdkafka's 100 ms, and 1 with this (measured with 2.16). The loop's own consumer
    # keeps both defaults: it lives long, and finds the brokers of a cluster whose addresses have all changed.
    "metadata.recovery.strategy": "none",
}

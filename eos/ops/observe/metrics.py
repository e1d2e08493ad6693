"""Metrics: the Prometheus series of one process.

The parent shows all workers' registries, with a label ``worker`` (:mod:`eos.ops.observe.aggregator`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# By the name: the attribute of TransactionCommitted, and the text.
HISTOGRAMS = {
    "eos_transaction_seconds": ("seconds", "Seconds from begin to the commit's answer."),
    "eos_commit_seconds": ("commit_seconds", "Seconds of sending offsets and committing."),
}
_OF_PARTITION = ("topic", "partition")
# By the name in `Gauges`: the name, the text, the labels.
_GAUGES = {
    "lag": (
        "eos_lag_records",
        "Offsets from what is committed to the last stable offset (markers count).",
        _OF_PARTITION,
    ),
    "lso_distance": (
        "eos_lso_distance_records",
        "Offsets from the last stable offset to the high watermark: held back by open transactions.",
        _OF_PARTITION,
    ),
    "stalled": (
        "eos_stalled_seconds",
        "Seconds for which a partition has brought no record although it holds some and is fetched.",
        _OF_PARTITION,
    ),
    "sessions_open": ("eos_sessions_open", "Sessions that are open.", ()),
    "strangers": ("eos_group_strangers", "Members of the group that are no instances of the job.", ()),
    "shards_owned": ("eos_shards_owned", "Shards that need an open session.", ()),
    "last_turn": (
        "eos_last_turn_timestamp_seconds",
        "When the shard's loop turned last, since the epoch.",
        ("shard",),
    ),
}

Gauges = Mapping[str, Mapping[tuple[object, ...], float]]  # by the keys of _GAUGES: by labels' values


class Metrics(Collector):
    """A process's series, in a registry of their own: counters, and gauges that are read when they are collected.

    Args:
        gauges: says what is so now; called from other threads.
    """

    def __init__(self, gauges: Callable[[], Gauges]) -> None:
        self.registry = registry = CollectorRegistry()
        self._gauges = gauges
        counter = partial(Counter, registry=registry)
        self.transactions = counter(
            "eos_transactions",
            "Transactions ended. 'unresolved': its outcome was not known at its end; the reopen settles it.",
            ["shard", "outcome"],
        )
        self.records_in = counter(
            "eos_records_in", "Input records of committed transactions, which loops count."
        )
        self.records_out = counter("eos_records_out", "Output records of committed transactions.")
        self.histograms = {
            attribute: Histogram(name, text, registry=registry, buckets=SECONDS)
            for name, (attribute, text) in HISTOGRAMS.items()
        }
        self.opens = counter(
            "eos_producer_opens",
            "Producers initialised: 'first', after a possible resend ('suspect'), or after one was 'over'.",
            ["reason"],
        )
        self.fences = counter("eos_fences", "Shards lost to another owner.")
        self.expired = counter("eos_expired", "Transactions that outlived transaction.timeout.ms.")
        self.retries = counter("eos_retries", "Calls to Kafka made again.", ["call"])
        self.dead_letters = counter(
            "eos_dead_letters",
            "Input records that could not be processed, by input topic.",
            ["topic", "skipped"],
        )
        self.rebalances = counter("eos_rebalances", "Times that input partitions came or went.", ["change"])
        for reason in ("first", "suspect", "over"):  # each begins at zero
            self.opens.labels(reason)
        for change in ("assigned", "revoked", "lost"):
            self.rebalances.labels(change)
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        return [GaugeMetricFamily(name, text) for name, text, _ in _GAUGES.values()]

    def collect(self) -> Iterable[Metric]:
        """The gauges."""
        shown = self._gauges()
        for key, (name, text, labels) in _GAUGES.items():
            family = GaugeMetricFamily(name, text, labels=labels)
            for values, figure in shown[key].items():
                family.add_metric([str(value) for value in values], figure)
            yield family


def total(counter: Counter, **labels: str) -> float:
    """What a counter has counted under these labels."""
    return sum(
        sample.value
        for family in counter.collect()
        for sample in family.samples
        if sample.name.endswith("_total") and labels.items() <= sample.labels.items()
    )

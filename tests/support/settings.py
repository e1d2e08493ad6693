"""Settings of nothing but what a test gives: the machine's environment and files are not read."""

from __future__ import annotations

from typing import Any

from eos.offsets import Partition
from eos.settings import Settings
from eos.shards import OrdinalShard, PartitionShard, Shard


def settings_of(bootstrap: str = "", /, **given: object) -> Settings:
    """Settings for a cluster, by dotted name, or with ``__`` for the dot."""
    overrides: dict[str, Any] = {"kafka.bootstrap_servers": bootstrap} if bootstrap else {}
    overrides |= {name.replace("__", "."): value for name, value in given.items()}
    return Settings.load(overrides=overrides, environ={})


def owning(mode: str, source: str) -> dict[str, object]:
    """What lets one instance own partition 0 of a topic, in this mode of ownership."""
    given: dict[str, object] = {"ownership__mode": mode, "ownership__ordinal": 0}
    return given | ({"ownership__partitions": [f"{source}:0"]} if mode == "partition" else {})


def shard_of(mode: str, app: str, group: str, source: str) -> Shard:
    """What that instance owns."""
    return (
        PartitionShard(app, group, Partition(source, 0))
        if mode == "partition"
        else OrdinalShard(app, group, 0)
    )

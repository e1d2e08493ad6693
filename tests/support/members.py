"""A member of a group that is none of eos'."""

from __future__ import annotations

from confluent_kafka import Consumer


def cooperative_member(bootstrap: str, group: str) -> Consumer:
    """A client that joins as eos' consumers do, once it is subscribed; the caller polls and closes it."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "partition.assignment.strategy": "cooperative-sticky",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )

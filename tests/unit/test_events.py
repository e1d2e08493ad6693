"""Events: facts that cannot be changed, cross process borders, and reach every listener in order."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from eos import events
from eos.events import Event, Sampled, ignore_event, send_to_all
from eos.offsets import OffsetVector, Partition
from eos.spark import events as spark_events

KINDS = [
    kind
    for module in (events, spark_events)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Event)
]
VALUES: dict[str, object] = {
    "offsets": OffsetVector({Partition("in", 0): 5}),
    "positions": OffsetVector({Partition("in", 0): 5}),
    "ends": OffsetVector({Partition("in", 0): 9}),
    "begins": OffsetVector({Partition("in", 0): 5}),
    "partition": Partition("in", 0),
    "partitions": (Partition("in", 0),),
    "outcome": "aborted",
    "policy": "earliest",
    "written": (0, 2),
    "transactional_ids": ("j.g.i.0",),
    "stack": ("job.py:1 in f",),
    "members": ("a-client @ 10.0.0.7",),
}


def made(kind: type[Event]) -> Event:
    given: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            plain = {"int": 3, "float": 0.5, "str": "said"}.get(str(field.type))
            given[field.name] = VALUES.get(field.name, plain)
            assert given[field.name] is not None, field
    return kind(**given)


@pytest.mark.parametrize("kind", KINDS)
def test_event_is_a_value_that_crosses_process_borders(kind: type[Event]) -> None:
    event = made(kind)
    assert pickle.loads(pickle.dumps(event)) == event  # noqa: S301 - our own bytes
    with pytest.raises(AttributeError):
        setattr(event, dataclasses.fields(event)[0].name, "other")


@pytest.mark.parametrize("kind", KINDS)
def test_every_event_names_its_shard_first(kind: type[Event]) -> None:
    assert dataclasses.fields(kind)[0].name == "shard"


def test_every_listener_is_called_in_order() -> None:
    seen: list[tuple[str, Event]] = []
    send = send_to_all(
        lambda e: seen.append(("first", e)), ignore_event, lambda e: seen.append(("second", e))
    )
    event = Sampled("j.g.i.0")
    send(event)
    assert seen == [("first", event), ("second", event)]

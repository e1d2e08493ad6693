"""The loop's session for a given shard, as tests drive it by hand."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from eos.events import Listener, ignore_event
from eos.session.pipeline import PipelinedSession
from eos.settings import Settings
from eos.shards import PartitionShard, Shard


def session_for(
    settings: Settings,
    shard: Shard,
    inputs: Sequence[str],
    *,
    listener: Listener = ignore_event,
    until_caught_up: bool = False,
    stop: threading.Event | None = None,
) -> PipelinedSession:
    """A session, not yet open, that owns this shard."""
    return PipelinedSession(
        settings.model_copy(update={"group": shard.group}),
        app=shard.app,
        inputs=inputs,
        outputs=["of-the-test"],
        partition=shard.partition if isinstance(shard, PartitionShard) else None,
        until_caught_up=until_caught_up,
        stop=stop,
        listener=listener,
    )

"""AtWork: a transform that takes long is named, with its record and the place where its code stands."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

from eos import events
from eos.records import InputBatch, InputRecord, OutputBatch, OutputRecord
from eos.runner.at_work import AtWork
from eos.sql.bound import BoundChanges
from eos.transform import Applied, BoundTransform
from tests.support.patience import PATIENCE_S

_BATCH = InputBatch.of([InputRecord("in", 0, offset, None, b"x", (), 0) for offset in (4, 5, 6)])


class Blocking:
    """A user's functions, which wait at the second record until they are released."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def record(self, record: InputRecord) -> list[OutputRecord]:
        if record.offset == 5:
            self.wait()
        return []

    def batch(self, batch: InputBatch) -> list[OutputBatch]:
        self.wait()
        return []

    def wait(self) -> None:
        assert self.released.wait(PATIENCE_S)


def to_topics(blocking: Blocking, *, by_batch: bool) -> Applied:
    function = (None, blocking.batch) if by_batch else (blocking.record, None)
    return BoundTransform("job", frozenset({"out"}), None, *function)


def to_tables(blocking: Blocking, *, by_batch: bool) -> Applied:
    function: tuple[Any, Any] = (None, blocking.batch) if by_batch else (blocking.record, None)
    return BoundChanges("job", [], *function, None, identity=lambda _: pytest.fail("not asked for"))


@pytest.mark.parametrize("by_batch", [False, True], ids=["record", "batch"])
@pytest.mark.parametrize("bound", [to_topics, to_tables])
def test_transform_that_blocks_is_named_until_it_has_returned(
    bound: Callable[..., Applied], by_batch: bool
) -> None:
    """One that writes to tables was named never."""
    blocking, heard = Blocking(), queue.SimpleQueue[events.Event]()
    transform = bound(blocking, by_batch=by_batch)
    with AtWork(heard.put, first_s=0.05) as at_work:

        def work() -> None:
            with at_work.on("shard", _BATCH, transform):
                if by_batch:
                    transform.batch(_BATCH)
                else:
                    transform.records(_BATCH, lambda *_: [])

        thread = threading.Thread(target=work)
        thread.start()
        event = heard.get(timeout=PATIENCE_S)
        assert isinstance(event, events.TransformAtWork)
        assert event.shard == "shard"
        assert event.records == ("in[0] offsets 4 to 6" if by_batch else "in[0] offset 5")
        assert event.seconds >= 0.05
        assert any("test_at_work.py" in call and call.endswith(" in wait") for call in event.stack)
        assert all("eos/transform.py" not in call and "eos/sql" not in call for call in event.stack)
        blocking.released.set()
        thread.join(PATIENCE_S)
        assert heard.get(timeout=PATIENCE_S) == events.TransformAtWork("shard", "", 0.0, ())


def test_transform_that_returns_in_time_is_not_named() -> None:
    heard = queue.SimpleQueue[events.Event]()
    with AtWork(heard.put, first_s=1.5) as at_work:
        for _ in range(8):
            with at_work.on("shard", _BATCH, to_topics(Blocking(), by_batch=True)):
                threading.Event().wait(0.2)
    assert heard.empty()

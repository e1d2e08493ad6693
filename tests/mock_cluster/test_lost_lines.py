"""A line of librdkafka's log that is no text: the callback cannot be called, and the call that serves it raises in its place.

Met once in some 17,000 tests, from Producer.poll(). What the line said may be that records were taken for delivered.
"""

from __future__ import annotations

import pytest

from eos import AbortableError
from eos.core.transaction import TransactionState
from eos.kafka.late_copies import ResendWatch
from tests.support.mock_shard import MockShard


class Lost:
    """Takes the place of the first line of a kind, or of any."""

    def __init__(self, facility: str | None) -> None:
        self.facility, self.came = facility, False
        self._log = ResendWatch.log

    def __call__(self, watch: ResendWatch, level: int, template: str, *args: object) -> None:
        if not self.came and self.facility in (None, args[0]):
            self.came = True
            b"\xff".decode()
        self._log(watch, level, template, *args)


def test_transaction_in_which_a_line_of_the_log_is_lost_is_aborted_and_the_next_one_commits(
    shard: MockShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.run(offset=1)
    shard.store(1)
    lost = Lost("ADDPARTS")
    monkeypatch.setattr(ResendWatch, "log", lambda watch, *args: lost(watch, *args))  # noqa: PLW0108 - a method
    with pytest.raises(AbortableError, match="a line of its log may be lost by UnicodeDecodeError"):
        shard.run(offset=2)
    assert lost.came
    assert shard.run().state is TransactionState.COMMITTED

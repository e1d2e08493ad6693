"""Ids of input topics, which brokers that are not equally up to date tell differently."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import pytest

from eos.errors import OffsetGapError, UnavailableError
from eos.spark.source import InputLogs
from tests.support.settings import settings_of


class Told(InputLogs):
    """Is told these ids, one after the other, and then the last one."""

    def __init__(self, *ids: str) -> None:
        super().__init__(settings_of())
        self._told: Iterator[str] = iter((*ids, *[ids[-1]] * 1_000))

    def ids(self, topics: Collection[str]) -> Mapping[str, str]:
        return dict.fromkeys(topics, next(self._told))


def test_input_that_has_its_id_is_taken() -> None:
    Told("first").refuse_recreated([("orders", "first")])


def test_input_of_which_all_brokers_tell_another_id_is_refused() -> None:
    with pytest.raises(OffsetGapError, match="its id was first, now it is second"):
        Told("second").refuse_recreated([("orders", "first")])


def test_input_of_which_one_broker_tells_another_id_is_asked_for_later() -> None:
    """The way out of a recreated input would process it twice."""
    with pytest.raises(UnavailableError, match="different ids"):
        Told("second", "first").refuse_recreated([("orders", "first")])


def test_ids_that_were_asked_for_just_now_are_compared_first() -> None:
    logs = Told("first")
    logs.refuse_recreated([("orders", "first"), ("gone", "first")], {"orders": "first"})
    with pytest.raises(UnavailableError, match="different ids"):
        logs.refuse_recreated([("orders", "first")], {"orders": "second"})

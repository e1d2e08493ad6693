"""A job raises the threshold of Python's garbage collector for its own time, and leaves a caller's choice alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from eos.runner.worker import _COLLECT_AFTER, _few_collections


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_threshold_is_raised_for_the_block_and_put_back_when_it_raises() -> None:
    gc.set_threshold(700, 11, 12)
    with pytest.raises(KeyError), _few_collections():
        assert gc.get_threshold() == (_COLLECT_AFTER, 11, 12)
        raise KeyError
    assert gc.get_threshold() == (700, 11, 12)


@pytest.mark.parametrize("chosen", [0, _COLLECT_AFTER + 1], ids=["switched off", "higher"])
def test_choice_of_the_caller_stands(chosen: int) -> None:
    gc.set_threshold(chosen, 10, 10)
    with _few_collections():
        assert gc.get_threshold() == (chosen, 10, 10)

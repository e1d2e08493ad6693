"""Patches of a model: the fakes that stand in the place of clients and clocks of eos. A model that fails may leave some."""

from __future__ import annotations

import pytest

_made: list[pytest.MonkeyPatch] = []


def new_patch() -> pytest.MonkeyPatch:
    """One for a model, which undoes it at its end."""
    _made.append(pytest.MonkeyPatch())
    return _made[-1]


def undo_all() -> None:
    """Undo what models have left, the last one first: every later test of this process would meet it."""
    while _made:
        _made.pop().undo()

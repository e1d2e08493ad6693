"""What every test of a model leaves behind: the process as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model.patches import undo_all


@pytest.fixture(autouse=True)
def _without_fakes() -> Iterator[None]:
    yield
    undo_all()

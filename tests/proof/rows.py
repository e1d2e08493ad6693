"""Rows: every line of the proof, in one place."""

from __future__ import annotations

from tests.proof.row import Row
from tests.proof.under_fire import ROWS as UNDER_FIRE

ROWS: tuple[Row, ...] = (*UNDER_FIRE,)

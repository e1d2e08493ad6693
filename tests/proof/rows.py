"""Rows: every line of the proof, in one place."""

from __future__ import annotations

from tests.proof.row import Row

ROWS: tuple[Row, ...] = ()

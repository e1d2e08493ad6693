"""Opened: what is opened and closed by a ``with`` block."""

from __future__ import annotations

from typing import Self


class Opened:
    """Entering the block opens, leaving it closes."""

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

"""Option: an option of a command, said where nothing of a command line is imported."""

from __future__ import annotations

from typing import NamedTuple


class Option(NamedTuple):
    """As ``Annotated[int, Option("How many.")]``; ``name`` if it is not the field's, ``min`` the least that may be given."""

    help: str
    metavar: str | None = None
    name: str = ""
    min: float | None = None

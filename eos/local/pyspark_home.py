"""Find an installed PySpark as a directory, without importing it: that takes seconds."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from eos.errors import ConfigError


def find_pyspark() -> Path | None:
    """The directory of the package, which is also the SPARK_HOME of the Spark inside it."""
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if Path(place, "jars").is_dir():
            return Path(place)
    return None


def require_pyspark() -> Path:
    """The same.

    Raises:
        ConfigError: PySpark is not installed, or only its client for Spark Connect.
    """
    if (home := find_pyspark()) is None:
        raise ConfigError("PySpark is not installed beside eos. Fix: pip install 'eos-kafka[spark]'")
    return home


def pyspark_version() -> str:
    """The version of the installed PySpark: "4.2.0".

    Raises:
        ConfigError: PySpark is not installed, or does not say its version.
    """
    file = require_pyspark() / "version.py"
    if (match := re.search(r"^__version__.*=\s*['\"]([^'\"]+)", file.read_text(), re.MULTILINE)) is None:
        raise ConfigError(f"{file} names no version. Fix: install PySpark again")
    return match[1]

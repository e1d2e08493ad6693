"""Find a Java that is new enough for Kafka and for Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from eos.errors import ConfigError
from eos.local.versions import KAFKA_JARS, MIN_JAVA_VERSION

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_ASK_TIMEOUT_S = 30.0  # `java -version` takes 0.1 s; a loaded machine may take seconds
_FIX = f"Fix: install a Java runtime >= {MIN_JAVA_VERSION} and put it on PATH, or point JAVA_HOME to it."


def find_java(needed_by: str = KAFKA_JARS.title) -> str:
    """The path of a java executable that is new enough for ``needed_by``: JAVA_HOME's, else the first on PATH.

    Raises:
        ConfigError: there is none, it does not run, or it is too old.
    """
    java = _java_of_environment()
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{java} does not run: {error}. {_FIX}") from error
    version = parse_java_version(answer.stderr + answer.stdout)
    if answer.returncode != 0 or version is None:
        raise ConfigError(f"{java} -version did not name a version (exit code {answer.returncode}). {_FIX}")
    if version < MIN_JAVA_VERSION:
        raise ConfigError(f"{java} is Java {version}; {needed_by} needs Java >= {MIN_JAVA_VERSION}. {_FIX}")
    return java


def parse_java_version(text: str) -> int | None:
    """The feature version in the output of ``java -version``: 17 of "17.0.15", 8 of "1.8.0_412"."""
    if (match := _VERSION.search(text)) is None:
        return None
    first, second = match.groups()
    return int(second) if first == "1" and second else int(first)


def _java_of_environment() -> str:
    if home := os.environ.get("JAVA_HOME"):
        java = Path(home, "bin", "java")
        if not java.is_file():
            raise ConfigError(f"JAVA_HOME is {home!r}, but there is no {java}. {_FIX}")
        return str(java)
    if on_path := shutil.which("java"):
        return on_path
    raise ConfigError(f"no Java found: JAVA_HOME is not set and there is no java on PATH. {_FIX}")

"""Provide the verified jars of Apache Kafka, from the first source at hand.

The jars arrive in a directory of their own beside the final one, are verified there and renamed: a directory
of the final name is always complete, whatever was killed when.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from eos.errors import ConfigError
from eos.local import download
from eos.local.versions import KAFKA_VERSION, SCALA_VERSION, Jar, pinned_jars
from eos.local.waiting import locked

Progress = Callable[[str], None]

_STAMP = "verified.json"
_LOCK_TIMEOUT_S = 2 * download.TIMEOUT_S + 60  # another process may download by one tool, and then verify


def provide_jars(directory: Path, *, java: str, kafka_home: Path | None, progress: Progress) -> Path:
    """The directory that holds the jars, filled if need be.

    Args:
        directory: where downloaded jars are kept; several clusters may share it.
        java: the java executable, for Ivy.
        kafka_home: an unpacked Kafka to take instead of a download. An explicit choice, so it comes first.
        progress: told one line before each long step.

    Raises:
        ConfigError: no source at hand, a jar is not what was pinned, or the directory is not writable.
        RetriableError: the download failed.
    """
    if kafka_home is not None:
        return _unpacked(kafka_home)
    jars = pinned_jars()
    directory = directory.absolute()  # Maven would read a relative path from its pom's directory
    lock = directory.parent / f"{directory.name}.lock"
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock, timeout_s=_LOCK_TIMEOUT_S, purpose="fetching Kafka's jars"):
            if directory.is_dir():
                verify(directory, jars)
            else:
                _download(directory, jars, download.find_tool(java), progress)
    except OSError as error:
        msg = f"cannot keep Kafka's jars in {directory}: {error}. Fix: choose a writable directory."
        raise ConfigError(msg) from error
    return directory


def verify(directory: Path, jars: Sequence[Jar]) -> None:
    """Check that the directory holds exactly the pinned jars; cheaply, if nothing changed since the last time.

    Raises:
        ConfigError: a jar is missing, changed or not ours. The message names it and the fix.
    """
    found = {path.name: path for path in directory.glob("*.jar")}
    stamp = {
        "jars": {jar.file_name: jar.sha256 for jar in jars},
        # Size and time stand for the content: hashing 54 MB at each start would cost half a second.
        "stat": {name: [(s := path.stat()).st_size, s.st_mtime_ns] for name, path in sorted(found.items())},
    }
    if _read_stamp(directory) == stamp:
        return
    expected = {jar.file_name: jar.sha256 for jar in jars}
    problems = [f"{name} is missing" for name in sorted(expected.keys() - found.keys())]
    problems += [f"{name} does not belong there" for name in sorted(found.keys() - expected.keys())]
    for name in sorted(expected.keys() & found.keys()):
        if (actual := _sha256(found[name])) != expected[name]:
            problems.append(f"{name} has SHA-256 {actual}, expected {expected[name]}")
    if problems:
        shown = "; ".join(problems[:3]) + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")  # noqa: PLR2004
        msg = f"the jars in {directory} are not those of Kafka {KAFKA_VERSION}: {shown}. Fix: delete {directory}"
        raise ConfigError(msg)
    (directory / _STAMP).write_text(json.dumps(stamp))


def _download(directory: Path, jars: Sequence[Jar], tool: download.Tool, progress: Progress) -> None:
    for left_over in directory.parent.glob(f".{directory.name}.*.tmp"):
        shutil.rmtree(left_over)  # under the lock: whoever filled it is gone
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=".tmp", dir=directory.parent))
    try:
        progress(f"Fetching {len(jars)} jars of Apache Kafka {KAFKA_VERSION} with {tool.name} (once, 54 MB)")
        libs = tool.fetch(jars, partial)
        verify(libs, jars)
        libs.replace(directory)
    except ConfigError as error:
        msg = f"{tool.name} fetched something else than what is pinned, nothing of it is kept: {error}"
        raise ConfigError(msg) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _unpacked(kafka_home: Path) -> Path:
    libs = kafka_home / "libs"
    if not any(libs.glob(f"kafka_{SCALA_VERSION}-*.jar")):
        msg = (
            f"{kafka_home} is not an unpacked Kafka: there is no libs/kafka_{SCALA_VERSION}-<version>.jar in it. "
            f"Fix: point EOS_LOCAL__KAFKA_HOME to the unpacked kafka_{SCALA_VERSION}-{KAFKA_VERSION}.tgz."
        )
        raise ConfigError(msg)
    return libs


def _read_stamp(directory: Path) -> object:
    try:
        return json.loads((directory / _STAMP).read_text())
    except (OSError, ValueError):
        return None  # no stamp means: look closely


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

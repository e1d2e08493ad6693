"""Provide a set of pinned jars, verified, from the first source at hand.

The jars arrive in a directory of their own beside the final one, are verified there and renamed: a directory
of the final name is always complete, also after a kill at any moment.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from eos.errors import ConfigError
from eos.local import download
from eos.local.lock import locked
from eos.local.pins import JarSet

Progress = Callable[[str], None]

_VERIFIED = "verified.json"
_LOCK_TIMEOUT_S = 2 * download.TIMEOUT_S + 60  # another process may download by one tool, and then verify


def jars_root(directory: Path | str, jars: Path | str | None) -> Path:
    """Where sets of fetched jars are kept: ``jars`` if given, else ``EOS_LOCAL__JARS``, else ``directory/jars``.

    Absolute: Maven would read a relative path from its pom's directory.
    """
    return Path(jars or os.environ.get("EOS_LOCAL__JARS") or Path(directory, "jars")).absolute()


def provide_jars(wanted: JarSet, directory: Path, *, java: str, progress: Progress) -> Path:
    """The directory, filled with the jars if need be.

    Args:
        wanted: the set.
        directory: where its jars are kept, and nothing else; others on this machine may share it.
        java: the java executable, for Ivy.
        progress: called with one line before each long step.

    Raises:
        ConfigError: no source at hand, a jar is not what was pinned, or the directory is not writable.
        RetriableError: the download failed.
    """
    directory = directory.absolute()
    lock = directory.parent / f"{directory.name}.lock"
    try:
        # Nothing to fetch means nothing to write, so jars that came with an image serve on a read-only file system.
        # Without the lock, because a directory of this name is always complete.
        if _is_verified(directory, wanted):
            return directory
        directory.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock, timeout_s=_LOCK_TIMEOUT_S, purpose=f"fetching the jars of {wanted.title}"):
            if directory.is_dir():
                verify(directory, wanted)
            else:
                _download(directory, wanted, download.find_tool(wanted, java), progress)
    except OSError as error:
        raise ConfigError(
            f"cannot keep the jars of {wanted.title} in {directory}: {error}. Fix: choose a writable directory."
        ) from error
    return directory


def verify(directory: Path, wanted: JarSet) -> None:
    """Check that the directory holds exactly the jars of the set; cheaply, if nothing changed since the last time.

    Raises:
        ConfigError: a jar is missing, changed or not ours. The message names it and the fix.
    """
    if _is_verified(directory, wanted):
        return
    expected = {jar.file_name: jar.sha256 for jar in wanted.jars()}
    found = {path.name: path for path in directory.glob("*.jar")}
    problems = []
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            problems.append(f"{name} is missing")
        elif name not in expected:
            problems.append(f"{name} does not belong there")
        elif expected[name] and (actual := _sha256(found[name])) != expected[name]:
            problems.append(f"{name} has SHA-256 {actual}, expected {expected[name]}")
    if problems:
        shown = "; ".join(problems[:3]) + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")  # noqa: PLR2004
        raise ConfigError(
            f"the jars in {directory} are not those of {wanted.title}: {shown}. Fix: delete {directory}"
        )
    (directory / _VERIFIED).write_text(json.dumps(_fingerprint(directory, wanted)))


def _is_verified(directory: Path, wanted: JarSet) -> bool:
    """Whether nothing changed since the jars were looked at closely."""
    try:
        return bool(json.loads((directory / _VERIFIED).read_text()) == _fingerprint(directory, wanted))
    except (OSError, ValueError):
        return False


def _fingerprint(directory: Path, wanted: JarSet) -> object:
    # Size and time stand for the content: hashing 54 MB at each start would cost half a second.
    found = sorted(directory.glob("*.jar"))
    return {
        "jars": {jar.file_name: jar.sha256 for jar in wanted.jars()},
        "stat": {path.name: [(s := path.stat()).st_size, s.st_mtime_ns] for path in found},
    }


def _download(directory: Path, wanted: JarSet, tool: download.Tool, progress: Progress) -> None:
    for left_over in directory.parent.glob(f".{directory.name}.*.tmp"):
        shutil.rmtree(left_over)  # under the lock: the process that filled it is gone
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=".tmp", dir=directory.parent))
    try:
        count = len(wanted.jars())
        progress(f"Fetching {count} jars of {wanted.title} with {tool.name} (once, {wanted.megabytes} MB)")
        libs = tool.fetch(partial)
        verify(libs, wanted)
        libs.replace(directory)
    except ConfigError as error:
        raise ConfigError(
            f"{tool.name} fetched something else than what is pinned, nothing of it is kept: {error}"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

#!/usr/bin/env python3
"""Gathers what an image is built from in one directory, which is then the context of ``docker build``.

    docker/stage.py app .eos/images/app && docker build --tag eos-app:dev .eos/images/app

The wheels are downloaded here, each with a hash of ``requirements.lock``, so that the build itself reaches
for nothing: it installs from the directory with the same hashes. Downloads are kept beside it and taken again.
Run it with the interpreter of ``.venv``: what is installed there says what the project needs to run.
"""
# ruff: noqa: T201 - a script, which prints

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import requires
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[1]
PROJECT = "eos-kafka"
EXTRAS = {"app": "", "spark": "spark"}  # image -> the extra that it installs
PYTHON = "3.11"  # of the images' base, Debian 12
_GLIBC_MINOR = 36  # the same: wheels for this glibc and for older ones run there
_OLDEST_GLIBC_MINOR = 17
_BUILT_HERE = frozenset({"pyspark"})  # published as source only
_NOT_DEPLOYED = re.compile(r"demo(_\w+)?\.py")  # of jobs/: it starts a broker of its own
_LIMIT_S = 900  # PySpark's source has 440 MB


class Entry(NamedTuple):
    """What the lock holds of one distribution."""

    name: str
    text: str
    hashes: frozenset[str]


def main() -> None:
    """Fill the directory."""
    parser = argparse.ArgumentParser(description="Gather the build context of an image.")
    parser.add_argument("image", choices=sorted(EXTRAS))
    parser.add_argument("directory", type=Path, help="is made anew, but for what is there already")
    parser.add_argument(
        "--machine", default=platform.machine(), help="processor of the image (x86_64, aarch64)"
    )
    options = parser.parse_args()
    context: Path = options.directory.absolute()
    kept = context.parent / "downloads"
    kept.mkdir(parents=True, exist_ok=True)

    entries = needed(EXTRAS[options.image], options.machine)
    found = fetch([entry for entry in entries if entry.name not in _BUILT_HERE], kept, options.machine)
    found |= {entry.name: build(entry, kept) for entry in entries if entry.name in _BUILT_HERE}
    renew(context)
    (context / "wheels").mkdir()
    for wheel in found.values():
        os.link(wheel, context / "wheels" / wheel.name)
    (context / "requirements.txt").write_text("".join(locked(entry, found[entry.name]) for entry in entries))
    pip("-m", "build", "--wheel", "--no-isolation", "-o", str(context / "project"), str(REPOSITORY))
    copy_project(options.image, context)
    for path in context.rglob("*"):  # readable for the image's user, whatever the umask was
        path.chmod(path.stat().st_mode | (0o755 if os.access(path, os.X_OK) else 0o644))
    print(f"{context}: {len(found)} wheels, {size_mb(context)} MB")


def needed(extra: str, machine: str) -> list[Entry]:
    """The entries of the lock that the project needs to run in the image, with an extra."""
    names = set(clean_install().runtime_names(PROJECT))
    for line in requires(PROJECT) or ():
        requirement = Requirement(line)
        if extra and requirement.marker is not None and requirement.marker.evaluate({"extra": extra}):
            names |= {canonicalize_name(requirement.name), *clean_install().runtime_names(requirement.name)}
    environment = {
        "python_version": PYTHON,
        "python_full_version": f"{PYTHON}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": machine,
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    entries = []
    for text in re.split(r"^(?=\S)", (REPOSITORY / "requirements.lock").read_text(), flags=re.MULTILINE):
        head = text.partition("\\")[0].strip()
        if not head:
            continue
        requirement = Requirement(head)
        name = canonicalize_name(requirement.name)
        if name in names and (requirement.marker is None or requirement.marker.evaluate(environment)):
            hashes = frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", text))
            entries.append(Entry(name, text.rstrip() + "\n", hashes))
    return entries


def fetch(entries: Iterable[Entry], kept: Path, machine: str) -> dict[str, Path]:
    """The wheel of each entry; downloaded if it is not kept."""
    found = kept_wheels(entries, kept)
    missing = [entry for entry in entries if entry.name not in found]
    if missing:
        minors = range(_GLIBC_MINOR, _OLDEST_GLIBC_MINOR - 1, -1)
        platforms = [f"manylinux_2_{minor}_{machine}" for minor in minors]
        platforms += [f"{old}_{machine}" for old in ("manylinux2014", "manylinux2010", "manylinux1", "linux")]
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as lock:
            lock.writelines(entry.text for entry in missing)
            lock.flush()
            print(f"Downloading {len(missing)} locked wheels (once)", flush=True)
            pip(
                *("-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"),
                *("--implementation", "cp", "--python-version", PYTHON, "--dest", str(kept)),
                *(word for one in platforms for word in ("--platform", one)),
                *("-r", lock.name),
            )
        found = kept_wheels(entries, kept)
    if lost := [entry.name for entry in entries if entry.name not in found]:
        sys.exit(f"no wheel with a hash of the lock: {', '.join(lost)}")
    return found


def kept_wheels(entries: Iterable[Entry], kept: Path) -> dict[str, Path]:
    """Name -> the kept wheel whose hash the lock has."""
    by_hash = {sha256(path): path for path in kept.glob("*.whl")}
    return {e.name: by_hash[match] for e in entries for match in sorted(e.hashes & by_hash.keys())[:1]}


def build(entry: Entry, kept: Path) -> Path:
    """The wheel of a source distribution, whose own hash is checked before it is built."""
    room = kept / f"{entry.name}-{hashlib.sha256(entry.text.encode()).hexdigest()[:16]}"
    if not (wheels := list(room.glob("*.whl"))):
        print(f"Building a wheel of {entry.name} (once)", flush=True)
        with tempfile.TemporaryDirectory(dir=kept) as partial:
            lock = Path(partial, "lock.txt")
            lock.write_text(entry.text)
            done = Path(partial, "done")
            pip(
                "-m",
                "pip",
                "wheel",
                "--quiet",
                "--no-deps",
                "--require-hashes",
                "-w",
                str(done),
                "-r",
                str(lock),
            )
            shutil.rmtree(room, ignore_errors=True)
            done.rename(room)
        wheels = list(room.glob("*.whl"))
    (wheel,) = wheels
    return wheel


def locked(entry: Entry, wheel: Path) -> str:
    """The entry for the image: with the one hash of the wheel that is there."""
    head = entry.text.partition("\\")[0].strip().partition(";")[0].strip()
    return f"{head} --hash=sha256:{sha256(wheel)}\n"


def copy_project(image: str, context: Path) -> None:
    """The image's own files, the jobs and their settings; for Spark its connector's jars too."""
    for source in sorted((REPOSITORY / "docker" / image).iterdir()):
        shutil.copy2(source, context)
    for name in ("jobs", "conf"):
        (context / name).mkdir()
        for source in sorted((REPOSITORY / name).glob("*.py" if name == "jobs" else "*.toml")):
            if not _NOT_DEPLOYED.fullmatch(source.name):
                shutil.copy2(source, context / name)
    if image == "spark":
        from eos.local.connector import provide_connector
        from eos.local.java import find_java

        jars = provide_connector(REPOSITORY / ".eos", java=find_java("Spark"), progress=print)
        for jar in jars:
            (context / "jars" / jar.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copy2(jar, context / "jars" / jar.parent.name)


def renew(context: Path) -> None:
    """An empty directory; only what this script wrote before is deleted."""
    ours = context / ".staged"
    if context.exists() and any(context.iterdir()) and not ours.exists():
        sys.exit(f"{context} holds something else. Fix: name a new directory")
    shutil.rmtree(context, ignore_errors=True)
    context.mkdir(parents=True)
    ours.touch()
    (context / ".dockerignore").write_text(".staged\n.dockerignore\nDockerfile\n")


def clean_install() -> ModuleType:
    """The script of CI that knows what the project needs to run."""
    specification = importlib.util.spec_from_file_location(
        "clean_install", REPOSITORY / ".ci/clean_install.py"
    )
    assert specification is not None  # noqa: S101 - for mypy
    assert specification.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def pip(*arguments: str) -> None:
    """Run this interpreter; if it fails, its output is shown and this process ends."""
    done = subprocess.run(
        [sys.executable, *arguments],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LIMIT_S,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\nfailed: {' '.join(arguments[:4])} …")


def sha256(path: Path) -> str:
    """The hash of a file, as the lock writes it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size_mb(directory: Path) -> int:
    """Megabytes of all files."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) // 1_000_000


if __name__ == "__main__":
    main()

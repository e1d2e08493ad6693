"""Installs the wheel of ``dist/`` into a clean environment of each supported Python found here, and uses it.

The dependencies are the locked ones, with their hashes: the lock also holds tools and extras, so only the
lines that the wheel needs are given to pip (``runtime_lock``). The wheel itself is then installed without
looking for dependencies, and ``pip check`` proves that nothing it asks for is missing: the lock and the
wheel's metadata cannot drift apart. Then comes the extra ``testing``, and a stranger's suite: the job and the
test that the README shows, and nothing else. Run by ``.ci/run`` with the environment's own interpreter.
"""
# ruff: noqa: INP001, T201 - a script, which prints

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[1]
PROJECT = "eos-kafka"
SUPPORTED = ("3.11", "3.12", "3.13")
LIMIT_S = 300

# Isolated and from another directory: the package can only come from the wheel.
USE = """
import pathlib, sys, eos
home = pathlib.Path(eos.__file__)
assert home.is_relative_to(sys.prefix), f"eos was imported from {home}"
assert home.with_name("py.typed").is_file(), "py.typed is missing"
assert "pyspark" not in sys.modules
"""


def runtime_names(project: str, extra: str = "") -> set[str]:
    """The project's dependencies and theirs, as installed in this interpreter's environment; one extra at most."""
    found: set[str] = set()
    waiting = [canonicalize_name(project)]
    asked = extra  # of the project itself; nothing else is asked for an extra
    while waiting:
        for line in requires(waiting.pop()) or ():
            requirement = Requirement(line)
            name = canonicalize_name(requirement.name)
            if name not in found and (
                requirement.marker is None or requirement.marker.evaluate({"extra": asked})
            ):
                found.add(name)
                waiting.append(name)
        asked = ""
    return found


def runtime_lock(lock: str, project: str, extra: str = "") -> str:
    """The entries of the lock that the project needs to run: ``name==version`` and its lines of hashes."""
    entries = re.split(r"^(?=\S)", lock, flags=re.MULTILINE)
    names = runtime_names(project, extra)
    return "".join(entry for entry in entries if canonicalize_name(entry.partition("==")[0]) in names)


def named_files(markdown: str) -> dict[str, str]:
    """Name -> content of the Python blocks whose first line is a comment with a file name."""
    return {
        match["name"]: match["code"]
        for match in re.finditer(
            r"^```python\n(?P<code># (?P<name>\w+\.py)\n.*?)^```$", markdown, re.MULTILINE | re.DOTALL
        )
    }


def interpreters() -> dict[str, str]:
    """Version -> interpreter: this one, and those on the PATH or built by pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found: dict[str, str] = {}
    for version in SUPPORTED:
        candidates = [sys.executable, f"python{version}", *map(str, pyenv.glob(f"{version}.*/bin/python"))]
        asks = f"import sys; sys.exit(not sys.version.startswith('{version}.'))"
        for candidate in candidates:
            try:
                done = subprocess.run(
                    [candidate, "-c", asks], capture_output=True, check=False, timeout=LIMIT_S
                )
            except FileNotFoundError:
                continue
            if done.returncode == 0:
                found[version] = candidate
                break
    return found


def run(*command: str, cwd: Path, **environment: str) -> str:
    """The command's output; if it fails, the output is shown and this process ends."""
    done = subprocess.run(
        command,
        cwd=cwd,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment},
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\nfailed: {' '.join(command)}")
    return done.stdout


def install_and_use(python: str, wheel: Path, room: Path) -> None:
    """A fresh environment in ``room`` with the locked dependencies and the wheel; import and console script."""
    run(python, "-m", "venv", "fresh", cwd=room)
    fresh = room / "fresh/bin"
    pip = (str(fresh / "python"), "-m", "pip")
    (room / "runtime.lock").write_text(runtime_lock((REPOSITORY / "requirements.lock").read_text(), PROJECT))
    run(*pip, "install", "--progress-bar=off", "--require-hashes", "-r", "runtime.lock", cwd=room)
    run(*pip, "install", "--no-deps", str(wheel), cwd=room)
    run(*pip, "check", cwd=room)
    run(str(fresh / "python"), "-I", "-W", "error", "-c", USE, cwd=room)
    if "Usage: eos" not in run(str(fresh / "eos"), "--help", cwd=room):
        sys.exit("eos --help does not show its usage")
    test_as_a_stranger(fresh, room)


def test_as_a_stranger(fresh: Path, room: Path) -> None:
    """The extra ``testing`` on top, and the job and the test of the README as the only files of a suite."""
    lock = (REPOSITORY / "requirements.lock").read_text()
    (room / "testing.lock").write_text(runtime_lock(lock, PROJECT, "testing"))
    pip = (str(fresh / "python"), "-m", "pip")
    run(*pip, "install", "--progress-bar=off", "--require-hashes", "-r", "testing.lock", cwd=room)
    run(*pip, "check", cwd=room)
    suite = room / "suite"
    suite.mkdir()
    for name, code in named_files((REPOSITORY / "README.md").read_text()).items():
        (suite / name).write_text(code)
    jars = os.environ.get("EOS_LOCAL__JARS", str(REPOSITORY / ".eos/jars"))  # where nothing is fetched twice
    said = run(
        *(str(fresh / "python"), "-m", "pytest", "-W", "error", f"--rootdir={suite}"),
        cwd=suite,
        EOS_LOCAL__JARS=jars,
    )
    header = next((line for line in said.splitlines() if line.startswith("eos: ")), "")
    if not header or " 1 passed" not in said:
        sys.exit(f"the README's test did not run as it should:\n{said}")
    print(f"the README's test passed; {header}", flush=True)


def main() -> None:
    """One clean environment after the other."""
    wheels = list((REPOSITORY / "dist").glob("*.whl"))
    if len(wheels) != 1:
        sys.exit(f"expected one wheel in dist/, found {len(wheels)}: run make wheel")
    pythons = interpreters()
    for version in SUPPORTED:
        if version not in pythons:
            print(f"Python {version}: not found here, skipped", flush=True)
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as room:
            install_and_use(pythons[version], wheels[0], Path(room))
        print(f"Python {version}: installed and used, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()

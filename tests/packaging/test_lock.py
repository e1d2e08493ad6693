"""The lock: complete for every supported Python, hashed, and silent about the registry it came from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.ci_scripts import script_of_ci

REPOSITORY = Path(__file__).parents[2]
LOCK = (REPOSITORY / "requirements.lock").read_text()
PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
_HEAD = re.compile(r"^(?P<requirement>[A-Za-z0-9._-]+==[^\\\n]+?) \\$", re.MULTILINE)


def locked(python: str) -> dict[str, Requirement]:
    """Name -> the requirement that the lock holds for a Python version on Linux."""
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    found = [Requirement(match["requirement"]) for match in _HEAD.finditer(LOCK)]
    return {
        canonicalize_name(entry.name): entry
        for entry in found
        if entry.marker is None or entry.marker.evaluate(environment)
    }


def declared() -> list[str]:
    extras = PROJECT["project"]["optional-dependencies"].values()
    return [
        *PROJECT["project"]["dependencies"],
        *(line for extra in extras for line in extra),
        *PROJECT["dependency-groups"]["dev"],
    ]


def test_every_locked_version_has_hashes_and_every_line_is_one_of_the_two() -> None:
    for entry in re.split(r"^(?=\S)", LOCK, flags=re.MULTILINE)[1:]:
        head, *hashes = entry.rstrip("\n").split("\n")
        assert _HEAD.fullmatch(head), head
        assert hashes, head
        assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in hashes), head


def test_the_lock_names_no_registry() -> None:
    """A host in the lock would tie every user to the registry that one developer has."""
    assert not re.search(r"://|index-url|find-links|trusted-host", LOCK)


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_what_the_project_declares_is_locked_at_a_version_that_it_allows(python: str) -> None:
    held = locked(python)
    for line in declared():
        requirement = Requirement(line)
        version = str(held[canonicalize_name(requirement.name)].specifier).removeprefix("==")
        assert requirement.specifier.contains(version), f"{line}, locked {version}: run make lock"


def test_the_wheel_s_own_lines_are_picked_out_of_the_lock() -> None:
    lines = script_of_ci("clean_install").runtime_lock(LOCK, "pydantic-settings")
    names = {canonicalize_name(Requirement(match["requirement"]).name) for match in _HEAD.finditer(lines)}
    assert {"pydantic", "pydantic-core", "typing-extensions"} <= names
    assert not {"pytest", "pyspark", "eos-kafka"} & names
    assert lines.count("--hash=") >= len(names)
    assert all(line in LOCK.splitlines() for line in lines.splitlines())


def test_an_extra_s_lines_come_on_top_of_the_wheel_s_own() -> None:
    """What the clean install of the extra ``testing`` is given."""
    script = script_of_ci("clean_install")
    plain, extended = (script.runtime_names("eos-kafka", extra) for extra in ("", "testing"))
    assert {"pytest", "testcontainers", "docker"} <= extended - plain
    assert plain < extended
    assert not {"pyspark", "mypy"} & extended


def test_the_files_that_a_document_shows_are_found_by_their_names() -> None:
    files = script_of_ci("clean_install").named_files((REPOSITORY / "README.md").read_text())
    assert {"shout.py", "test_shout.py"} == set(files)
    assert "import job" in files["test_shout.py"]

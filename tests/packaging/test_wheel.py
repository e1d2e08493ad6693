"""What is in the wheel, and what is not."""

from __future__ import annotations

import subprocess
import sys
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.patience import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    """The wheel of this tree, built without the network: the build backend is in the environment."""
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", target, REPOSITORY],
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    return ZipFile(next(target.glob("*.whl")))


def text_of(wheel: ZipFile, ending: str) -> str:
    return wheel.read(next(name for name in wheel.namelist() if name.endswith(ending))).decode()


def test_nothing_but_the_library_is_in_the_wheel(wheel: ZipFile) -> None:
    """Jobs, settings, benchmarks and tests belong to a deployment, not to the library."""
    rooms = {name.partition("/")[0] for name in wheel.namelist()}
    assert rooms == {"eos", "eos_pytest", next(room for room in rooms if room.endswith(".dist-info"))}


def test_every_file_of_the_library_is_in_the_wheel(wheel: ZipFile) -> None:
    """Data too: py.typed tells type checkers that the annotations are meant for them."""
    files = {
        path.relative_to(REPOSITORY).as_posix()
        for package in ("eos", "eos_pytest")
        for path in (REPOSITORY / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in wheel.namelist() if name.startswith(("eos/", "eos_pytest/"))} == files
    assert {"eos/py.typed", "eos/local/jars.sha256"} <= files


def test_the_licence_is_in_the_wheel(wheel: ZipFile) -> None:
    assert text_of(wheel, "licenses/LICENSE") == (REPOSITORY / "LICENSE").read_text()
    assert Parser().parsestr(text_of(wheel, "/METADATA"))["License-Expression"] == "Apache-2.0"


def test_the_command_and_the_supported_pythons_are_declared(wheel: ZipFile) -> None:
    metadata = Parser().parsestr(text_of(wheel, "/METADATA"))
    assert "eos = eos.cli:main" in text_of(wheel, "entry_points.txt")
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata.get_payload(), "the README is the description"

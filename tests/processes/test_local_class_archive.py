"""The archive of Kafka's classes is made once, and a start goes on without one that cannot be had."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eos.errors import ConfigError
from eos.local.class_archive import class_archive

Record = Callable[[str], None]


@pytest.fixture
def libs(tmp_path: Path) -> Path:
    (tmp_path / "kafka").mkdir()
    return tmp_path / "kafka"


def _archived(option: str) -> None:
    Path(option.removeprefix("-XX:ArchiveClassesAtExit=")).write_text("classes")


def _options(libs: Path, record: Record) -> tuple[str, ...]:
    return class_archive(libs, sys.executable, record)


def _unexpected(option: str) -> None:
    pytest.fail(f"recorded again: {option}")


def test_archive_is_made_once_and_used_from_then_on(libs: Path) -> None:
    options = _options(libs, _archived)
    archive = Path(options[0].removeprefix("-XX:SharedArchiveFile="))
    assert archive.read_text() == "classes"
    assert archive.parent == libs.parent
    assert _options(libs, _unexpected) == options


def test_another_java_has_an_archive_of_its_own(libs: Path, tmp_path: Path) -> None:
    other = tmp_path / "java"
    other.touch()
    options = class_archive(libs, str(other), _archived)
    assert options != _options(libs, _archived)


def test_record_that_failed_costs_nothing_but_time_and_is_tried_again(libs: Path) -> None:
    def fail(option: str) -> None:
        _archived(option)
        raise ConfigError("broker 1 ended while starting")

    assert _options(libs, fail) == ()
    assert _options(libs, _archived) != ()


def test_java_that_writes_no_archive_is_asked_once(libs: Path) -> None:
    assert _options(libs, lambda _: None) == ()
    assert _options(libs, _unexpected) == ()


def test_directory_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert _options(tmp_path / "file" / "kafka", _unexpected) == ()

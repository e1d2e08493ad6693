"""Which Java is taken, and what is said when there is none that will do."""

from __future__ import annotations

from pathlib import Path

import pytest

from eos.errors import ConfigError
from eos.local.java import find_java, parse_java_version


def _java(home: Path, version_line: str, exit_code: int = 0) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{version_line}' >&2\nexit {exit_code}\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('java version "1.8.0_412"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xss1m\nopenjdk version "17.0.1" 2021-10-19', 17),
        ("no such thing", None),
    ],
)
def test_version_is_read_in_every_form(line: str, version: int | None) -> None:
    assert parse_java_version(line) == version


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_home = _java(tmp_path / "home", 'openjdk version "17.0.1"')
    _java(tmp_path / "path", 'openjdk version "21"')
    monkeypatch.setenv("PATH", f"{tmp_path}/path/bin:/bin")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == str(at_home)


def test_missing_java_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no Java found.*install a Java runtime >= 17"):
        find_java()


def test_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"JAVA_HOME is '{tmp_path}', but there is no"):
        find_java()


def test_old_java_is_refused_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = _java(tmp_path, 'openjdk version "11.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=rf"{java} is Java 11; Apache Kafka 4\.2\.1 needs Java >= 17"):
        find_java()


@pytest.mark.parametrize(
    ("line", "exit_code"), [("Error occurred", 1), ("Unable to locate a Java Runtime", 0)]
)
def test_java_that_does_not_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, exit_code: int
) -> None:
    _java(tmp_path, line, exit_code)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="did not name a version"):
        find_java()


def test_java_that_is_no_program_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _java(tmp_path, "").chmod(0o644)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="does not run"):
        find_java()

"""What ended a process also stands where Kubernetes shows it, bounded and without secrets or records."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from eos.errors import TransformError
from eos.exits import ENDS, ExitCode
from eos.ops.observe import configure_logs
from eos.ops.observe.termination import TerminationLog, note_termination
from eos.settings.tables import ObserveSettings
from tests.support.command_line import Eos


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty file, as Kubernetes puts it there."""
    path = tmp_path / "termination-log"
    path.touch()
    monkeypatch.setattr(TerminationLog, "path", path)
    return path


def test_it_is_where_kubernetes_looks_for_it() -> None:
    assert ObserveSettings().termination_log == Path("/dev/termination-log")


def test_the_first_errors_stay_and_no_more_is_written_than_is_shown(file: Path) -> None:
    note_termination("the cause")
    note_termination("x" * 10_000)
    note_termination("the last")
    assert file.read_text().startswith("the cause\nxxx")
    assert file.stat().st_size == 4096


@pytest.mark.parametrize("what", ["missing", "directory"])
def test_nothing_is_made_and_nothing_fails_where_there_is_no_such_file(
    file: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = file.parent / what
    if what == "directory":
        other.mkdir()
    for path in (other, None):
        monkeypatch.setattr(TerminationLog, "path", path)
        note_termination("an error")
    assert other.exists() == (what == "directory")


def test_a_password_in_an_address_is_hidden(file: Path) -> None:
    note_termination("UnavailableError: http://me:hush@registry does not answer")
    assert "hush" not in file.read_text()
    assert "registry does not answer" in file.read_text()


def test_the_text_of_user_codes_error_is_not_in_it_even_where_logs_show_it(file: Path) -> None:
    configure_logs(ObserveSettings(record_errors="show", termination_log=file))
    error = TransformError("in[0] offset 7: ValueError: 4711", topic="in", partition=0, offset=7)
    error.__cause__ = ValueError("4711")
    logging.getLogger("eos.runner").error("%s", error)
    assert file.read_text() == ""  # it need not be the end
    logging.getLogger("eos.runner").error("%s", error, extra=ENDS)
    assert "in[0] offset 7: the transform raised ValueError" in file.read_text()
    assert "4711" not in file.read_text()


def test_the_error_of_a_command_is_in_it(eos: Eos, file: Path) -> None:
    ended = eos("run", "no.such.module:job", "--set", f"observe.termination_log={file}")
    assert ended.code == ExitCode.CONFIGURATION
    assert file.read_text().startswith("ConfigError: ")
    assert "no.such.module" in file.read_text()

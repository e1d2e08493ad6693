"""How `eos` ends: one message on stderr and the documented exit code, whatever went wrong."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from eos.errors import (
    ConfigError,
    EosError,
    FencedError,
    OffsetGapError,
    RecordRefusedError,
    TransformError,
    UnavailableError,
    UnclassifiedError,
    UsageError,
)
from eos.exits import ExitCode
from tests.support.command_line import Eos

_REPOSITORY = Path(__file__).parents[3]
_ERRORS = [
    (ConfigError("wrong"), ExitCode.CONFIGURATION),
    (UsageError("wrong"), ExitCode.CONFIGURATION),
    (FencedError("wrong"), ExitCode.FENCED),
    (TransformError("wrong", topic="t", partition=0, offset=1), ExitCode.POISON),
    (RecordRefusedError("wrong"), ExitCode.POISON),
    (UnavailableError("wrong"), ExitCode.UNAVAILABLE),
    (OffsetGapError("wrong"), ExitCode.OFFSET_GAP),
    (UnclassifiedError("wrong"), ExitCode.UNEXPECTED),
]


def _fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("eos.settings.Settings.load", load)


@pytest.mark.parametrize(("error", "code"), _ERRORS, ids=lambda value: type(value).__name__)
def test_an_error_is_a_line_and_the_page_about_its_own_exit_code(
    eos: Eos, monkeypatch: pytest.MonkeyPatch, error: EosError, code: ExitCode
) -> None:
    _fail_with(error, monkeypatch)
    page = f"docs/guides/faq.md#exit-code-{int(code)}"
    assert eos("config", "show") == (code, "", f"eos: wrong\n  see {page}\n")


def test_debug_adds_the_place_where_the_error_was_raised(eos: Eos, monkeypatch: pytest.MonkeyPatch) -> None:
    _fail_with(ConfigError("wrong"), monkeypatch)
    assert "Traceback" in eos("--debug", "config", "show").err
    assert "Traceback" not in eos("config", "show").err


def test_the_log_level_debug_does_so_too(eos: Eos) -> None:
    ended = eos("run", "nowhere:job", "--set", "observe.log_level=debug")
    assert ended.code == ExitCode.CONFIGURATION
    assert "Traceback" in ended.err
    assert "there is no module 'nowhere'" in ended.err.splitlines()[-2]


def test_ctrl_c_exits_as_a_shell_expects(eos: Eos, monkeypatch: pytest.MonkeyPatch) -> None:
    _fail_with(KeyboardInterrupt(), monkeypatch)
    assert eos("config", "show") == (130, "", "")


def test_a_module_that_raises_when_it_is_imported_is_named_with_its_line_and_no_word_of_the_command_line(
    eos: Eos, tmp_path: Path
) -> None:
    (tmp_path / "broken_job.py").write_text("from eos import Job\n\njob = Job(name='a', input=['a'])\n")
    ended = eos("run", "broken_job:job", "--app-dir", str(tmp_path))
    assert ended.code == ExitCode.UNEXPECTED
    [line] = ended.err.splitlines()
    assert (
        f"TypeError when it is imported at {tmp_path / 'broken_job.py'}:3: Job.__init__() got an unexpected"
        in line
    )
    debugged = eos("--debug", "run", "broken_job:job", "--app-dir", str(tmp_path))
    assert debugged.code == ExitCode.UNEXPECTED
    assert "Traceback" in debugged.err


@pytest.mark.parametrize(("is_first", "handled"), [(True, True), (False, False)])
def test_first_process_of_a_container_answers_sigterm_and_any_other_leaves_it_to_the_system(
    eos: Eos, monkeypatch: pytest.MonkeyPatch, is_first: bool, handled: bool
) -> None:
    """The kernel drops a signal without a handler for process 1, so it could only be killed while it starts.

    The number that is asked for is changed here, and not `os.getpid`: that one is everybody's, and what other
    tests left to the garbage collector asks it too (multiprocessing's heap, when it frees what is shared).
    """
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    monkeypatch.setattr("eos.cli.command_line._INIT", os.getpid() if is_first else os.getpid() + 1)
    try:
        assert eos("--version").code == ExitCode.DONE
        handler = signal.getsignal(signal.SIGTERM)
        assert callable(handler) == handled
        if callable(handler):
            with pytest.raises(SystemExit) as ended:
                handler(signal.SIGTERM, None)
            assert ended.value.code == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)

"""Log lines: how lines look (human on a terminal, JSON elsewhere) and where they go, without secrets or records.

They go to stderr; stdout belongs to the command's answer. A stderr that is gone is no reason to stop.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TextIO

from eos.base.printable import printable, printable_json, printable_lines
from eos.ops.observe.quoting import Texts, shown_error, shown_traceback
from eos.ops.observe.termination import TerminationLog, note_termination
from eos.settings.secrets import hidden
from eos.settings.tables import ObserveSettings

_DISTRIBUTION = "eos-kafka"
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_NAMES = {number: name for name, number in _LEVELS.items()}
_EVENT_WIDTH, _LEVEL_WIDTH = 30, 9
_BOLD, _DIM, _BLUE, _CYAN, _MAGENTA = "\x1b[1m", "\x1b[2m", "\x1b[34m", "\x1b[36m", "\x1b[35m"
_OF_LEVEL = {
    "debug": "\x1b[32m",
    "info": "\x1b[32m",
    "warning": "\x1b[33m",
    "error": "\x1b[31m",
    "critical": "\x1b[31m",
}
_TO_QUOTE = frozenset(" \t=\r\n\"'")


class Lines:
    """How this process's lines look, and where they go; `configure_logs` sets it."""

    stream: TextIO | None = None  # stderr
    level = logging.DEBUG
    human = True
    colors = False


def is_written(level: str) -> bool:
    """Whether a line of this level is."""
    return _LEVELS[level] >= Lines.level


def write(level: str, event: str, /, **fields: object) -> None:
    """Write a line. ``exc_info``, an error or True for the one that is handled, comes as its traceback.

    It is written with one call, so that lines of several processes do not mix.
    """
    if not is_written(level):
        return
    error = fields.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()[1]
    if isinstance(error, BaseException):
        fields["exception"] = shown_traceback(error)
    shown = {name: hidden(str(name), value) for name, value in {"event": event, **fields}.items()}
    line = (_for_people if Lines.human else _for_programs)(level, shown)
    # Another process may show a line that changes (`eos run` does): what of it stands there goes first.
    erase = "\x1b[1G\x1b[2K" if Lines.colors else ""
    stream = sys.stderr if Lines.stream is None else Lines.stream
    with suppress(OSError, ValueError):  # ValueError: the stream is closed. A listener must not raise.
        stream.write(f"{erase}{line}\n")
        stream.flush()


def _for_programs(level: str, fields: Mapping[str, object]) -> str:
    timestamp = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    head = {"timestamp": timestamp, "level": level, "event": fields["event"]}
    return printable_json(json.dumps({**head, **fields}, ensure_ascii=False, default=repr))


def _for_people(level: str, fields: Mapping[str, object]) -> str:
    """The further lines of a text are indented: none of them looks like a line of the log."""

    def styled(style: str, text: str) -> str:
        return f"{style}{text}\x1b[0m" if Lines.colors else text

    shown = {printable(str(name)): _on_a_terminal(value) for name, value in fields.items()}
    below = [str(shown.pop(name)) for name in ("stack", "exception") if name in shown]
    columns = [
        styled(_DIM, datetime.now().strftime("%H:%M:%S")),  # noqa: DTZ005 - as the reader's clock has it
        f"[{styled(_OF_LEVEL[level] + _BOLD, level.ljust(_LEVEL_WIDTH))}]",
        styled(_BOLD, str(shown.pop("event")).ljust(_EVENT_WIDTH)),
    ]
    if "logger" in shown:
        name = styled(_BOLD + _BLUE, str(shown.pop("logger")))
        columns.append(f"{styled('', '[')}{name}{styled('', ']')}")
    columns += [f"{styled(_CYAN, name)}={styled(_MAGENTA, _quoted(value))}" for name, value in shown.items()]
    return "\n".join([" ".join(columns).rstrip(" "), *below])


def _on_a_terminal(value: object) -> object:
    if isinstance(value, str):
        return printable_lines(value, indent="    ")
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return printable(str(value))


def _quoted(value: object) -> str:
    return value if isinstance(value, str) and not _TO_QUOTE.intersection(value) else repr(value)


def configure_logs(settings: ObserveSettings, *, stream: TextIO | None = None) -> bool:
    """Set up the process's logs; each worker process does it anew. ``stream`` is stderr if not given.

    Lines of the standard library's logging come out in the same form: those of eos at the same level,
    other packages' from warning on.

    Returns:
        Whether the lines are JSON.
    """
    stream = sys.stderr if stream is None else stream
    terminal = stream.isatty()
    Lines.stream = stream
    Lines.level = level = _LEVELS[settings.log_level.lower()]
    Lines.human = settings.log_format == "human" or (settings.log_format == "auto" and terminal)
    Lines.colors = Lines.human and terminal and not os.environ.get("NO_COLOR")
    TerminationLog.path = settings.termination_log
    automatic = settings.record_errors == "auto" and (terminal or level == logging.DEBUG)
    Texts.shown = settings.record_errors == "show" or automatic
    logging.getLogger("eos").setLevel(level)
    root = logging.getLogger()
    root.handlers[:] = [one for one in root.handlers if not isinstance(one, FromLogging)] + [FromLogging()]
    return not Lines.human


def log_start(librdkafka_version: Callable[[], str], **fields: object) -> None:
    """The first line: what runs here. ``fields`` are added to it (job, ordinal …)."""
    write(
        "info",
        "started",
        **fields,
        eos=eos_version(),
        confluent_kafka=_version("confluent-kafka"),
        librdkafka=librdkafka_version(),
        python=".".join(map(str, sys.version_info[:3])),
        pid=os.getpid(),
    )


class FromLogging(logging.Handler):
    """Passes a record of the standard library's logging on."""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "ends", False):
            note_termination(_said(record, texts=False))
        named = {} if record.name.partition(".")[0] == "eos" else {"logger": record.name}
        if docs := getattr(record, "docs", ""):
            named["docs"] = docs
        # Lines have no other levels.
        level = min(logging.CRITICAL, max(logging.DEBUG, record.levelno // 10 * 10))
        error = record.exc_info[1] if record.exc_info else None
        write(_NAMES[level], _said(record), exc_info=error, **named)


def _said(record: logging.LogRecord, *, texts: bool | None = None) -> str:
    """Its message. ``texts`` as of shown_error."""
    if isinstance(record.msg, BaseException):
        return shown_error(record.msg, texts=texts)
    arguments = record.args
    if isinstance(arguments, tuple):
        arguments = tuple(
            shown_error(a, texts=texts) if isinstance(a, BaseException) else a for a in arguments
        )
    try:
        return str(record.msg) % arguments if arguments else str(record.msg)
    except (TypeError, ValueError):
        return str(record.msg)


def eos_version() -> str:
    """Of this package."""
    return _version(_DISTRIBUTION)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"  # run from its source tree

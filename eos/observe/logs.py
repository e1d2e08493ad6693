"""Logs: how lines look (human on a terminal, JSON elsewhere) and where they go, without secrets or records.

They go to stderr; stdout belongs to the command's answer. A stderr that is gone is no reason to stop.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TextIO

from eos.observe.lean_structlog import structlog
from eos.observe.quoting import Texts, shown_error, shown_traceback
from eos.observe.termination import TerminationLog, note_termination
from eos.printable import printable, printable_json, printable_lines
from eos.settings.secrets import hidden
from eos.settings.tables import ObserveSettings

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

_DISTRIBUTION = "eos-kafka"


def configure_logs(settings: ObserveSettings, *, stream: TextIO | None = None) -> bool:
    """Set up the process's logs; each worker process does it anew. ``stream`` is stderr if not given.

    Lines of the standard library's logging come out in the same form: those of eos at the same level,
    other packages' from warning on.

    Returns:
        Whether the lines are JSON.
    """
    stream = sys.stderr if stream is None else stream
    terminal = stream.isatty()
    human = settings.log_format == "human" or (settings.log_format == "auto" and terminal)
    colors = human and terminal and not os.environ.get("NO_COLOR")
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    structlog.configure(
        processors=_processors(human=human, colors=colors),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: _LineWriter(stream, erase=colors),
        cache_logger_on_first_use=False,
    )
    TerminationLog.path = settings.termination_log
    automatic = settings.record_errors == "auto" and (terminal or level == logging.DEBUG)
    Texts.shown = settings.record_errors == "show" or automatic
    logging.getLogger("eos").setLevel(level)
    root = logging.getLogger()
    root.handlers[:] = [one for one in root.handlers if not isinstance(one, FromLogging)] + [FromLogging()]
    return not human


def log_start(librdkafka_version: Callable[[], str], **fields: object) -> None:
    """The first line: what runs here. ``fields`` are added to it (job, ordinal …)."""
    structlog.get_logger().info(
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
        # structlog knows no other levels.
        level = min(logging.CRITICAL, max(logging.DEBUG, record.levelno // 10 * 10))
        structlog.get_logger().log(level, _said(record), exc_info=record.exc_info or None, **named)


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


class _LineWriter:
    """Writes a line with one call, so that lines of several processes do not mix; swallows a broken stream."""

    def __init__(self, stream: TextIO, *, erase: bool) -> None:
        self._stream = stream
        # Another process may show a line that changes (`eos run` does): what of it stands there goes first.
        self._erase = "\x1b[1G\x1b[2K" if erase else ""

    def msg(self, line: str) -> None:
        # ValueError: the stream is closed. A listener must not raise.
        with suppress(OSError, ValueError):
            self._stream.write(f"{self._erase}{line}\n")
            self._stream.flush()

    debug = info = warning = error = critical = msg


def _processors(*, human: bool, colors: bool) -> list[Processor]:
    # The formatter of tracebacks is given, because the default one prints local variables where rich is installed.
    console = structlog.dev.ConsoleRenderer(
        colors=colors, sort_keys=False, exception_formatter=structlog.dev.plain_traceback
    )
    last: list[Processor] = [_printable, console]
    if not human:
        last = [_head_first, structlog.processors.JSONRenderer(ensure_ascii=False), _printable_json]
    return [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if human else "iso", utc=not human),
        _unquoted_traceback,
        _without_secrets,
        *last,
    ]


def _unquoted_traceback(_logger: WrappedLogger, _method: str, fields: EventDict) -> EventDict:
    """In the place of exc_info: the traceback, without what may quote a record."""
    error = fields.pop("exc_info", None)
    if isinstance(error, tuple):
        error = error[1]
    elif error is True:
        error = sys.exc_info()[1]
    if isinstance(error, BaseException):
        fields["exception"] = shown_traceback(error)
    return fields


def _without_secrets(_logger: WrappedLogger, _method: str, fields: EventDict) -> EventDict:
    return {name: hidden(str(name), value) for name, value in fields.items()}


def _printable(_logger: WrappedLogger, _method: str, fields: EventDict) -> EventDict:
    """For a terminal. The further lines of a text are indented: none of them looks like a line of the log."""
    shown = {printable(str(name)): _on_a_terminal(value) for name, value in fields.items()}
    if "exception" in fields:
        shown["exception"] = printable_lines(str(fields["exception"]), indent="    ")
    return shown


def _on_a_terminal(value: object) -> object:
    if isinstance(value, str):
        return printable_lines(value, indent="    ")
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return printable(str(value))


def _printable_json(_logger: WrappedLogger, _method: str, line: Any) -> str:
    return printable_json(line)


def _head_first(_logger: WrappedLogger, _method: str, fields: EventDict) -> EventDict:
    return {**{name: fields.pop(name) for name in ("timestamp", "level", "event")}, **fields}


def eos_version() -> str:
    """Of this package."""
    return _version(_DISTRIBUTION)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"  # run from its source tree

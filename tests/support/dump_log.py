"""A partition's log as the broker has it on disk; see eos.local.dump_log."""

from eos.local.dump_log import EntryKind, LogEntry, dump_log, parse

__all__ = ["EntryKind", "LogEntry", "dump_log", "parse"]

"""Pages: where the documentation says what to do about an error that ends a command."""

from __future__ import annotations

import re

from eos.exits import ExitCode

_PAGE = "docs/guides/faq.md"
# Parts of messages that the page has an entry for; "…" stands for what differs.
ENTRIES = (
    "there is no module",
    "is missing: nothing says where Kafka is",
    "--local: no Kafka runs in",
    "there is no such setting",
    "does not answer at … (kafka.bootstrap_servers)",
    "no way to get the jars of",
    "topics of the job … do not exist",
    "access was refused",
    "has no committed offsets for …, and nothing says where to start",
    "has an offset committed by the job",
    "has the offset …, which eos has not committed",
    "the broker is too old for transactions with group metadata",
    "transaction.timeout_ms is above the broker's",
    "another owner",
    "which is not declared",
    "the transform raised",
    "is larger than allowed",
    "the transform took … s for this record, for the second time",
    "offsets are held back",
    "They were deleted (retention, DeleteRecords) before they were processed",
    "the output topic was deleted and created anew",
    "the parent process is gone",
    "this process was forked inside a job",
    "is a fork of it",
    "has processed no record, so nothing was compared",
    "and no committed record is left among them",
    "no usable answer in … s",
)


def page_of(code: ExitCode, message: str = "") -> str:
    """The place about a message; where none is, that about the exit code."""
    entry = next((entry for entry in ENTRIES if pattern_of(entry).search(message)), f"Exit code {int(code)}")
    return f"{_PAGE}#{_anchor(entry)}"


def pattern_of(entry: str) -> re.Pattern[str]:
    """What an entry stands for. What is filled in may be nothing, or several parts and the words between them."""
    return re.compile(r"[^\n]*?".join(re.escape(part) for part in re.split(r" ?… ?", entry)))


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")

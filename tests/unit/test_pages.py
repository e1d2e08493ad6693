"""Which page an error names: its own entry where there is one, else that of its exit code."""

from __future__ import annotations

import pytest

from eos.exits import ExitCode
from eos.pages import page_of


@pytest.mark.parametrize(
    ("code", "message", "anchor"),
    [
        (
            ExitCode.CONFIGURATION,
            "transactoin: there is no such setting. Fix: transaction",
            "there-is-no-such-setting",
        ),
        (
            ExitCode.UNAVAILABLE,
            "Kafka does not answer at a:9092 (kafka.bootstrap_servers) in 15 s: read metadata: no usable answer in 5 s",
            "does-not-answer-at--kafkabootstrap_servers",
        ),
        (ExitCode.FENCED, "p: another owner on web-7/4711 has taken the partition over", "another-owner"),
        (ExitCode.CONFIGURATION, "'--workers' is given twice", "exit-code-2"),
        (ExitCode.NOT_EXACTLY_ONCE, "", "exit-code-7"),
    ],
    ids=lambda value: value.name if isinstance(value, ExitCode) else None,
)
def test_an_error_names_the_entry_about_its_text_or_its_code(
    code: ExitCode, message: str, anchor: str
) -> None:
    assert page_of(code, message) == f"docs/guides/faq.md#{anchor}"

"""Errors name commands that can be typed as they stand, and that change nothing."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from eos.base.commands import Started, started_with, suggested
from tests.support.documents import REPOSITORY

# Where the option itself is declared, and where a preview says how to go on.
_ABOUT_THE_OPTION = ("To do it: --yes",)


def test_without_a_command_line_the_job_is_named_as_in_a_help_text() -> None:
    assert (
        suggested("offsets set", "--to", "earliest", job=True) == "eos offsets set MODULE:NAME --to earliest"
    )


def test_a_command_names_the_job_and_the_options_that_this_process_was_started_with() -> None:
    started_with(Started("jobs.refunds:job", ("--config", "conf/refunds.toml", "--local")))
    assert suggested("skip", "orders:2@11", job=True) == (
        "eos skip jobs.refunds:job orders:2@11 --config conf/refunds.toml --local"
    )
    assert (
        suggested("transactions end", "a.b.i.0")
        == "eos transactions end a.b.i.0 --config conf/refunds.toml --local"
    )


def test_a_setting_that_a_command_gives_is_not_given_a_second_time() -> None:
    started_with(Started("jobs.refunds:job", ("--local",), ("group=refunds", "transaction.interval_ms = 50")))
    assert suggested("offsets copy", "--from-group", "refunds", "--set", "group=NEW", job=True) == (
        "eos offsets copy jobs.refunds:job --from-group refunds --set group=NEW --local --set 'transaction.interval_ms = 50'"
    )


def test_a_name_with_a_space_stays_one_word() -> None:
    command = suggested("offsets copy", "--from-group", "my group", "--set", "group=NEW", job=True)
    assert shlex.split(command)[4:6] == ["--from-group", "my group"]


def test_no_error_hands_out_a_command_that_already_says_yes() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{line}: {text}"
        for path in sorted((REPOSITORY / "eos").rglob("*.py"))
        for line, text in _texts(path)
        if "--yes" in text and text != "--yes" and not any(about in text for about in _ABOUT_THE_OPTION)
    ]
    assert found == []


@pytest.mark.parametrize(
    "page",
    [
        "RUNBOOK.md",
        "operations/access.md",
        "operations/brokers.md",
        "operations/fenced-ping-pong.md",
        "operations/lso.md",
        "operations/offsets.md",
        "operations/poison-records.md",
        "operations/spark.md",
        "guides/changing.md",
        "guides/deploying.md",
        "FENCED.md",
        "GUARANTEES.md",
        "guarantees-appendix.md",
        "SPARK.md",
        "reference/spark-clusters.md",
        "reference/spark-in-place.md",
        "reference/spark-ledger.md",
        "reference/spark-limits.md",
        "guides/spark-batch.md",
        "guides/spark-stream.md",
    ],
)
def test_no_page_hands_out_a_command_that_already_says_yes(page: str) -> None:
    lines = (REPOSITORY / "docs" / page).read_text().splitlines()
    assert [line for line in lines if "--yes" in line and "`--yes`" not in line] == []


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module but its docstrings."""
    tree = ast.parse(path.read_text())
    owners = (ast.Module, ast.FunctionDef, ast.ClassDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, owners) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value

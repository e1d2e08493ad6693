"""CI's audit tells a clean answer from no answer, and a licence that nobody has looked at from the others."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.ci_scripts import script_of_ci

CI = Path(__file__).parents[2] / ".ci"
CLEAN: dict[str, Any] = {"name": "sound", "version": "1.0", "vulns": []}
FLAWED: dict[str, Any] = {
    "name": "flawed",
    "version": "2.0",
    "vulns": [{"id": "CVE-1", "fix_versions": ["2.1"]}],
}
UNKNOWN: dict[str, Any] = {"name": "unknown", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "code", "says"),
    [
        ([CLEAN], 0, "1 packages audited, 0 known"),
        ([CLEAN, FLAWED], 1, "flawed 2.0: CVE-1, fixed in 2.1"),
        ([CLEAN, UNKNOWN], 0, "not audited: unknown"),
        ([UNKNOWN], 0, "SKIPPED.*about none of 1"),
        ([UNKNOWN, FLAWED], 1, "CVE-1"),
    ],
)
def test_audit_fails_for_a_flaw_and_never_calls_an_unasked_package_clean(
    packages: list[dict[str, Any]], code: int, says: str
) -> None:
    found, text = script_of_ci("audit").verdict({"dependencies": packages})
    assert found == code
    assert re.search(says, text)


@pytest.mark.parametrize(
    ("licence", "allowed"),
    [
        ("MIT", True),
        ("BSD-3-Clause AND 0BSD AND MIT", True),
        ("MIT OR GPL-3.0", True),
        ("LGPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("UNKNOWN", False),
    ],
)
def test_licence_is_allowed_only_if_each_of_its_parts_is(licence: str, allowed: bool) -> None:
    assert script_of_ci("licences").allowed(licence) is allowed


def test_list_of_licences_is_that_of_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["licences.py", "--check"])
    assert script_of_ci("licences").main() == 0

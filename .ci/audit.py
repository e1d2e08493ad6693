"""Asks a database of known vulnerabilities about every locked package; fails if one is known.

Where the database cannot be reached, or answers about none of them (a mirror has the packages and not always
what is known of them), it says so in one line and passes: that nothing was found proves nothing there.
"""
# ruff: noqa: INP001, T201 - a script, which prints

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
LIMIT_S = 120


def verdict(report: dict[str, Any]) -> tuple[int, str]:
    """The exit code and what to print for pip-audit's report."""
    packages = report["dependencies"]
    asked = [one for one in packages if "skip_reason" not in one]
    if not asked:
        reason = packages[0]["skip_reason"] if packages else "nothing is locked"
        return 0, f"audit SKIPPED: the database answered about none of {len(packages)} packages ({reason})"
    found = [
        f"{one['name']} {one['version']}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or 'no version'}"
        for one in asked
        for flaw in one["vulns"]
    ]
    unknown = [one["name"] for one in packages if "skip_reason" in one]
    lines = [f"{len(asked)} packages audited, {len(found)} known vulnerabilities", *found]
    if unknown:
        lines.append(f"not audited: {', '.join(unknown)}")
    return int(bool(found)), "\n".join(lines)


def main() -> int:
    """Audit the lock."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--format", "json"]
    command += ["--progress-spinner", "off", "--requirement", str(REPOSITORY / "requirements.lock")]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        print(f"audit SKIPPED: the database gave no answer in {LIMIT_S} s")
        return 0
    try:
        report = json.loads(ended.stdout)
    except ValueError:
        last = ended.stderr.strip().rpartition("\n")[2]
        if "onnection" not in last:  # requests' ConnectionError, and pip-audit's own "Connection error"
            print(f"audit FAILED: {last}")
            return 1
        print(f"audit SKIPPED: the database cannot be reached ({last[:120]})")
        return 0
    code, text = verdict(report)
    print(text)
    return code


if __name__ == "__main__":
    sys.exit(main())

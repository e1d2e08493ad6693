"""Problem: one wrong setting, in words that name it, what is wrong and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eos.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Problem:
    """One wrong setting.

    Attributes:
        name: as the user wrote it, or dotted.
        what: what is wrong; never holds the value of a secret.
        fix: what to do.
        where: which source said it; "" if the name says so already.
    """

    name: str
    what: str
    fix: str
    where: str = ""

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        return f"{self.name}{where}: {self.what}. Fix: {self.fix}"


def config_error(problems: Sequence[Problem]) -> ConfigError:
    """One error that lists every problem, so that a start fails once and not once per mistake."""
    lines = list(dict.fromkeys(str(problem) for problem in problems))
    if len(lines) == 1:
        return ConfigError(lines[0])
    listed = "\n".join(f"  - {line}" for line in lines)
    return ConfigError(f"{len(lines)} settings are wrong:\n{listed}")


def nearest(name: str, known: Iterable[str], *, separator: str = ".") -> str:
    """The known name that was probably meant, or "".

    A right last part in the wrong table (``bootstrap_servers`` for ``kafka.bootstrap_servers``) counts
    as near, though the whole names differ by more than a typing error.
    """
    candidates = list(known)
    if close := difflib.get_close_matches(name, candidates, n=1, cutoff=0.75):
        return close[0]
    by_last_part = {candidate.rpartition(separator)[2]: candidate for candidate in reversed(candidates)}
    close = difflib.get_close_matches(name.rpartition(separator)[2], list(by_last_part), n=1, cutoff=0.75)
    return by_last_part[close[0]] if close else ""

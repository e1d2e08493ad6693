"""Problems: wrong settings, in words that name each, what is wrong with it and the fix, and no secret."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from eos.errors import ConfigError
from eos.settings.secrets import is_sensitive

_WANTED = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "is not a whole number"),
    "float_parsing": "is not a number",
    **dict.fromkeys(("bool_parsing", "bool_type"), "is neither true nor false"),
    "greater_than_equal": "is below {ge}",
    "less_than_equal": "is above {le}",
    "literal_error": "is not one of {expected}",
}
_WANTED_WITHOUT_VALUE = {
    "missing": "is missing",
    "extra_forbidden": "there is no such setting",
    "model_type": "is a table, not one value",
    "dict_type": "is a table, not one value",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One wrong setting."""

    name: str  # as the user wrote it, or dotted
    what: str  # what is wrong; never holds the value of a secret
    fix: str
    where: str = ""  # the source that gave it; "" if the name has it already

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


def problems_of(
    error: ValidationError,
    *,
    prefix: str = "",
    origin: Callable[[str], str],
    fix_for: Callable[[str, str], str],
    show_values: bool = True,
) -> list[Problem]:
    """Each of pydantic's errors as a problem.

    Args:
        error: never used whole, because its text may print the input.
        prefix: put before each dotted name.
        origin: where a dotted name was set, "" if nowhere.
        fix_for: what to do with a dotted name, given a verb for it ("correct it"); "" if unknown.
        show_values: whether a value that is no secret may be shown.
    """
    problems = []
    for one in error.errors(include_url=False, include_input=True):
        # A rule of a whole model has no place in it.
        name = (prefix + ".".join(str(part) for part in one["loc"])).rstrip(".")
        fix, verb = "", "set it" if one["type"] == "missing" else "correct it"
        if one["type"] == "value_error":
            # Our own validators: "what is wrong. Fix: what to do".
            what, _, fix = str(one["ctx"]["error"]).partition(". Fix: ")
        elif (what := _WANTED_WITHOUT_VALUE.get(one["type"], "")) == "":
            wanted = _WANTED.get(one["type"])
            what = wanted.format(**one.get("ctx", {})) if wanted else one["msg"]
            given = one["input"]
            if show_values and isinstance(given, str | int | float) and not is_sensitive(name):
                what = f"{given!r} {what}" if wanted else f"{given!r}: {what}"
        problems.append(Problem(name, what, fix or fix_for(name, verb) or verb, origin(name)))
    return problems

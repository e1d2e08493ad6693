"""pydantic's validation errors, translated into problems that say the fix and hide what was given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from eos.settings.problems import Problem
from eos.settings.secrets import is_sensitive

_WANTED: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "int_parsing": lambda _: "is not a whole number",
    "int_type": lambda _: "is not a whole number",
    "int_from_float": lambda _: "is not a whole number",
    "float_parsing": lambda _: "is not a number",
    "bool_parsing": lambda _: "is neither true nor false",
    "bool_type": lambda _: "is neither true nor false",
    "greater_than_equal": lambda context: f"is below {context['ge']}",
    "less_than_equal": lambda context: f"is above {context['le']}",
    "literal_error": lambda context: f"is not one of {context['expected']}",
    "missing": lambda _: "is missing",
    "extra_forbidden": lambda _: "is unknown",
}


def problems_of(
    error: ValidationError,
    *,
    prefix: str = "",
    origin: Callable[[str], str],
    describe: Callable[[str], str],
    show_values: bool = True,
) -> list[Problem]:
    """Each of pydantic's errors as a problem.

    Args:
        error: what pydantic raised. Its text is never used whole: it may print the input.
        prefix: put before each dotted name.
        origin: where a dotted name was set, "" if nowhere.
        describe: what a dotted name wants, for the fix; "" if unknown.
        show_values: whether a value that is no secret may be shown.
    """
    problems = []
    for one in error.errors(include_url=False, include_input=True):
        name = (prefix + ".".join(str(part) for part in one["loc"])).rstrip(
            "."
        )  # a rule of a whole model has none
        if one["type"] == "value_error":
            # Our own validators: "what is wrong. Fix: what to do".
            what, _, fix = str(one["ctx"]["error"]).partition(". Fix: ")
        else:
            wanted = _WANTED.get(one["type"])
            what, fix = (wanted(one.get("ctx", {})) if wanted else one["msg"]), ""
            given = one["input"]
            if show_values and isinstance(given, str | int | float) and not is_sensitive(name):
                what = f"{given!r} {what}" if wanted else f"{given!r}: {what}"
        problems.append(Problem(name, what, fix or describe(name) or "correct the value", origin(name)))
    return problems

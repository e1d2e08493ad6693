"""Failures: an EosError's way from a Spark task to the caller of the run, through whatever Spark wraps it in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from eos import errors
from eos.errors import EosError, UnclassifiedError, UsageError

_MARKER = re.compile(r"eos-failure (\{.*\})")
_PYTHON_ERROR = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Warning|Interrupt|Exit))\b", re.MULTILINE)


class TaskFailure(Exception):  # noqa: N818 - it is the wrapping of an error
    """An EosError on its way through Spark, which keeps of a task's exception only its text."""

    def __init__(self, error: EosError) -> None:
        super().__init__(f"{error}\n{marker(error)}")


@contextmanager
def marked() -> Iterator[None]:
    """EosErrors of the block leave it in a form that :func:`from_spark` finds again."""
    try:
        yield
    except EosError as error:
        raise TaskFailure(error) from error


def marker(error: EosError) -> str:
    """The text by which :func:`from_spark` finds an error, wherever it stands."""
    return f"eos-failure {encoded(error)}"


def encoded(error: EosError) -> str:
    """An EosError as one line of text."""
    state = {name: value for name, value in vars(error).items() if not name.startswith("__")}
    public = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in vars(errors))
    return json.dumps({"class": public, "message": str(error), "state": state}, default=str)


def decoded(text: str) -> EosError:
    """The EosError that :func:`encoded` made the text of."""
    found: dict[str, Any] = json.loads(text)
    kind = getattr(errors, found["class"], None)
    if not (isinstance(kind, type) and issubclass(kind, EosError)):
        kind = UnclassifiedError
    error: EosError = kind.__new__(kind)
    error.args = (found["message"],)
    vars(error).update({"code": None} | found["state"])
    return error


def from_spark(error: Exception) -> EosError:
    """What a failed Spark action means: the EosError of a task if one is in its text, else what can be said.

    The text of a user's own exception is not repeated: it may quote records.
    """
    text = str(error)
    if match := _MARKER.search(text):
        try:
            return decoded(match[1])
        except ValueError:  # Spark cuts long texts
            return UnclassifiedError("a task failed; Spark's log has the whole of it")
    if "Python" in type(error).__name__ or "PythonException" in text:
        raised = _PYTHON_ERROR.findall(text)
        name = raised[-1] if raised else "an exception"
        return UsageError(
            f"the transform raised {name} in a task (its text may quote a record, so it is not repeated; Spark's "
            "log has it). Nothing of that task's shards was committed. Fix: the transform"
        )
    first = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    return UnclassifiedError(f"Spark failed: {first}")

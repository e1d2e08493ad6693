"""The line that an error names is one of the user's code, whatever library it has called."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from eos.base.raised_at import raised_at
from eos.errors import UnclassifiedError, UsageError
from eos.exits import ExitCode, exit_code_of
from eos.job import Job
from eos.records import InputBatch, InputRecord, OutputRecord, by_topic


def parse(text: str) -> object:
    return json.loads(text)


def line_of(function: Callable[..., object]) -> str:
    return f" at {__file__}:{function.__code__.co_firstlineno + 1}"


def test_error_of_a_library_names_the_line_that_has_called_it() -> None:
    with pytest.raises(json.JSONDecodeError) as raised:
        parse("no JSON")
    assert raised_at(raised.value) == line_of(parse)
    assert raised_at(ValueError("raised nowhere")) == ""


def grouped(text: str) -> object:
    return by_topic([text])  # type: ignore[list-item] # no record


def test_error_that_eos_raises_names_the_line_that_has_called_it() -> None:
    with pytest.raises(AttributeError) as raised:
        grouped("no record")
    assert raised_at(raised.value) == line_of(grouped)


def factory() -> Callable[[InputRecord], list[OutputRecord]]:
    raise KeyError("rates")


def make(_: InputRecord) -> Callable[[InputRecord], list[OutputRecord]]:
    return lambda record: [OutputRecord("out", record.value)]


def test_factory_that_raises_is_told_with_its_line() -> None:
    job = Job(name="j", inputs=["in"], outputs=["out"], transform_factory=factory)
    with pytest.raises(UnclassifiedError, match="the factory of its transform raised KeyError") as raised:
        job.bound()
    assert line_of(factory) in str(raised.value)
    assert exit_code_of(raised.value) is ExitCode.UNEXPECTED


def test_transform_that_is_a_factory_is_told_as_one() -> None:
    shape: dict[str, Any] = {"transform": make}
    job = Job(name="j", inputs=["in"], outputs=["out"], **shape)
    batch = InputBatch.of([InputRecord("in", 0, 7, None, b"")])
    with pytest.raises(UsageError, match=r"^in\[0\] offset 7: .*returned function.*transform_factory="):
        job.bound().records(batch, lambda *_: [])

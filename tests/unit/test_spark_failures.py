"""An EosError survives what Spark does to a task's exception: only its text arrives."""

from __future__ import annotations

import pytest

from eos.errors import EosError, FencedError, TransformError, UnclassifiedError, UsageError
from eos.spark.failures import TaskFailure, decoded, encoded, from_spark, marked


def wrapped(error: EosError) -> Exception:
    """As PySpark shows a task's exception."""
    return RuntimeError(
        f"Job aborted due to stage failure: …\nTraceback …\n{TaskFailure(error)}\n\tat org.apache…"
    )


def test_class_message_and_fields_arrive() -> None:
    sent = TransformError('a "quoted"\ntext\\', topic="t", partition=1, offset=2)
    found = from_spark(wrapped(sent))
    assert isinstance(found, TransformError)
    assert (str(found), found.topic, found.partition, found.offset) == (str(sent), "t", 1, 2)


def test_the_code_arrives() -> None:
    found = decoded(encoded(FencedError("gone", code="_FENCED")))
    assert (type(found), found.code) == (FencedError, "_FENCED")


def test_a_private_class_arrives_as_its_public_base() -> None:
    class _OwnError(FencedError):
        pass

    assert type(decoded(encoded(_OwnError("x")))) is FencedError


def test_errors_of_a_block_leave_it_marked() -> None:
    with pytest.raises(TaskFailure) as caught, marked():
        raise UsageError("wrong")
    assert isinstance(from_spark(caught.value), UsageError)


def test_a_users_exception_is_named_and_not_quoted() -> None:
    text = "An exception was thrown from the Python worker:\nTraceback …\nKeyError: 'card number 42'"
    found = from_spark(type("PythonException", (Exception,), {})(text))
    assert isinstance(found, UsageError)
    assert "KeyError" in str(found)
    assert "42" not in str(found)


def test_a_failure_of_spark_keeps_its_first_line() -> None:
    found = from_spark(RuntimeError("Job aborted: executor lost\nmore"))
    assert isinstance(found, UnclassifiedError)
    assert str(found) == "Spark failed: Job aborted: executor lost"


def test_a_marker_that_was_cut_is_no_crash() -> None:
    assert isinstance(from_spark(RuntimeError('eos-failure {"class": "FencedErr}')), UnclassifiedError)

"""Job: a declaration that contradicts itself is refused, and a transform is held to its declaration."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from pydantic import BaseModel

from eos.errors import UsageError
from eos.job import Job
from eos.records import InputBatch, InputRecord, OutputBatch, OutputRecord

RECORD = InputRecord("in", 0, 0, b"k", b"v")


def copied(record: InputRecord) -> list[OutputRecord]:
    return [OutputRecord("out", record.value, record.key)]


def copied_batch(batch: InputBatch) -> list[OutputBatch]:
    return [OutputBatch("out", batch.values, batch.keys)]


def job(**changes: Any) -> Job:
    declared: dict[str, Any] = {"name": "copy", "inputs": ["in"], "outputs": ["out"], "transform": copied}
    return Job(**(declared | changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": ""}, "Job name"),
        ({"name": "a.b"}, "Job name"),
        ({"name": "a" * 61}, "Job name"),
        ({"inputs": []}, "inputs needs at least one"),
        ({"inputs": "in"}, "inputs is a list"),
        ({"inputs": ["in", "in"]}, "each named once"),
        ({"outputs": ["out put"]}, "not topic names"),
        ({"outputs": ["in"]}, "input and output"),
        ({"dead_letters": "in"}, "input and output"),
        ({"dead_letters": "d l q"}, "not topic names"),
        ({"transform": None}, "exactly one"),
        ({"transform_batch": copied_batch}, "exactly one"),
    ],
)
def test_contradiction_is_refused_with_its_reason(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        job(**changes)


def test_dead_letter_topic_is_written_too_and_may_be_an_output() -> None:
    assert job(dead_letters="dlq").written_topics == {"out", "dlq"}
    assert job(outputs=["out", "dlq"], dead_letters="dlq").written_topics == {"out", "dlq"}


def test_declaration_cannot_change_under_a_running_session() -> None:
    declared: Any = job()
    with pytest.raises(AttributeError):
        declared.name = "other"
    assert declared.inputs == ("in",)


def test_function_of_a_record_is_applied_to_a_record() -> None:
    bound = job().bound()
    assert not bound.takes_batches
    assert bound.record(RECORD) == [OutputRecord("out", b"v", b"k")]
    with pytest.raises(UsageError, match="no transform_batch"):
        bound.batch(InputBatch.of([RECORD]))


def test_function_of_a_batch_can_be_applied_to_one_record() -> None:
    bound = job(transform=None, transform_batch=copied_batch).bound()
    assert bound.takes_batches
    assert bound.record(RECORD) == [OutputRecord("out", b"v", b"k")]
    assert [len(out) for out in bound.batch(InputBatch.of([RECORD, RECORD]))] == [2]


def test_generators_are_transforms_too() -> None:
    def twice(record: InputRecord) -> Iterable[OutputRecord]:
        yield from copied(record)
        yield from copied(record)

    assert len(job(transform=twice).bound().record(RECORD)) == 2


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (OutputRecord("elsewhere", b"v"), "elsewhere.*not declared.*Fix.*out"),
        ({"topic": "out"}, "returned dict"),
        (OutputBatch("out", [b"v"]), "returned OutputBatch"),
    ],
)
def test_output_that_was_not_declared_is_the_users_bug(output: object, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        job(transform=lambda _: [output]).bound().record(RECORD)


@pytest.mark.parametrize("made", [None, OutputRecord("out", b"v"), "text", {"out": b"v"}, 3], ids=str)
def test_what_is_no_list_of_outputs_is_the_users_bug_and_no_poison(made: object) -> None:
    """A forgotten ``return`` would send every record of the job to the dead-letter topic."""
    with pytest.raises(UsageError, match=r"returned \w+, not a list of OutputRecord\. Fix: return \["):
        job(transform=lambda _: made).bound().record(RECORD)

    def failed(_record: InputRecord, error: Exception) -> list[OutputRecord]:
        raise AssertionError from error

    with pytest.raises(UsageError, match="not a list of OutputRecord"):
        job(transform=lambda _: made).bound().records(InputBatch.of([RECORD]), failed)


def test_one_output_batch_without_a_list_is_the_users_bug() -> None:
    batches = job(transform=None, transform_batch=lambda _: OutputBatch("out", [b"v"])).bound()
    with pytest.raises(UsageError, match="returned OutputBatch, not a list of OutputBatch"):
        batches.batch(InputBatch.of([RECORD]))


def test_batch_output_is_held_to_the_declaration_too() -> None:
    bound = job(transform=None, transform_batch=lambda _: [OutputBatch("elsewhere", [b"v"])]).bound()
    with pytest.raises(UsageError, match="not declared"):
        bound.batch(InputBatch.of([RECORD]))


class Limits(BaseModel):
    """Settings of a job."""

    suffix: str = "!"


def with_limits(limits: Limits) -> Callable[[InputRecord], list[OutputRecord]]:
    return lambda record: [OutputRecord("out", (record.value or b"") + limits.suffix.encode())]


def test_job_with_settings_gives_factories() -> None:
    bound = job(transform=with_limits, settings=Limits).bound(Limits(suffix="?"))
    assert bound.record(RECORD) == [OutputRecord("out", b"v?")]


@pytest.mark.parametrize(("model", "given"), [(Limits, None), (None, Limits())])
def test_settings_without_a_model_or_the_reverse_are_refused(
    model: type[BaseModel] | None, given: BaseModel | None
) -> None:
    with pytest.raises(UsageError, match="iff the job declares a model"):
        job(settings=model).bound(given)


def test_dead_letter_needs_a_declared_topic() -> None:
    with pytest.raises(UsageError, match=r"Fix: Job\(dead_letters="):
        job().bound().dead_letter(RECORD, ValueError("no"))
    letter = job(dead_letters="dlq").bound().dead_letter(RECORD, ValueError("no"))
    assert letter.topic == "dlq"
    assert letter.headers[-1] == ("eos.deadletter.error", b"ValueError: no")

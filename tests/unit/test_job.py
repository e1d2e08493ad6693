"""Job: a declaration that contradicts itself is refused, and a transform is held to its declaration."""

from __future__ import annotations

import ctypes
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from eos.cli.exit import end_at_signal
from eos.errors import ConfigError, EndedBySignal, FencedError, UsageError
from eos.job import Job, check_topics
from eos.records import InputBatch, InputRecord, OutputBatch, OutputRecord, OutputRefusedError
from eos.references import load_named

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
        ({"transform_factory": lambda: copied_batch}, "exactly one"),
        ({"settings": BaseModel}, r"does not get settings=\. Fix: transform_factory="),
    ],
)
def test_contradiction_is_refused_with_its_reason(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        job(**changes)


def test_one_string_as_the_outputs_of_a_session_is_refused() -> None:
    """It was taken for a topic per letter."""
    with pytest.raises(UsageError, match="outputs is a list"):
        check_topics("copy", ["in"], "out")


def test_factory_of_a_job_without_settings_is_called_with_nothing() -> None:
    bound = job(transform=None, transform_batch_factory=lambda: copied_batch).bound()
    assert bound.takes_batches
    assert [out.value for out in bound.record(RECORD)] == [RECORD.value]


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


def test_class_of_eos_that_a_factory_raises_is_a_mistake_of_the_job_and_no_fence() -> None:
    class Own(BaseModel):
        pass

    def factory(_: Own) -> object:
        raise FencedError("not of this job's shard")

    with pytest.raises(UsageError, match=r"factory of its transform raised FencedError.*Fix: ") as raised:
        job(transform=None, transform_factory=factory, settings=Own).bound(Own())
    assert isinstance(raised.value.__cause__, FencedError)


def test_module_that_raises_a_class_of_eos_when_it_is_imported_is_a_mistake_and_no_fence(
    tmp_path: Path,
) -> None:
    (tmp_path / "module_that_is_fenced.py").write_text(
        "import eos\nraise eos.FencedError('not of this process')\n"
    )
    with pytest.raises(UsageError, match=r"'module_that_is_fenced' raised FencedError.*Fix: "):
        load_named("module_that_is_fenced:job", tmp_path, Job, "eos.Job")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def broken(:\n", r"broken_module\.py, line 1: invalid syntax.*Fix: "),
        ("import no_such_package\n", r"'broken_module' imports 'no_such_package'.*Fix: "),
    ],
)
def test_module_that_cannot_be_imported_is_named_with_the_place_and_without_a_traceback(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "broken_module.py").write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_named("broken_module:job", tmp_path, Job, "eos.Job")


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


def test_factory_gets_the_settings_of_the_job() -> None:
    bound = job(transform=None, transform_factory=with_limits, settings=Limits).bound(Limits(suffix="?"))
    assert bound.record(RECORD) == [OutputRecord("out", b"v?")]


@pytest.mark.parametrize(("model", "given"), [(Limits, None), (None, Limits())])
def test_settings_without_a_model_or_the_reverse_are_refused(
    model: type[BaseModel] | None, given: BaseModel | None
) -> None:
    with pytest.raises(UsageError, match="iff the job declares a model"):
        job(transform=None, transform_factory=with_limits, settings=model).bound(given)


def test_dead_letter_needs_a_declared_topic() -> None:
    with pytest.raises(UsageError, match=r"Fix: Job\(dead_letters="):
        job().bound().dead_letter(RECORD, ValueError("no"))
    letter = job(dead_letters="dlq").bound().dead_letter(RECORD, ValueError("no"))
    assert letter.topic == "dlq"
    assert letter.headers[-1] == ("eos.deadletter.error", b"ValueError: no")


def test_headers_that_a_record_function_uses_again_are_those_of_their_record() -> None:
    shared: list[Any] = []

    def one_after_the_other(record: InputRecord) -> Iterator[OutputRecord]:
        for name in ("a", "b"):
            shared[:] = [(name, record.value)]
            yield OutputRecord("out", record.value, headers=shared)  # type: ignore[arg-type]

    bound = job(transform=one_after_the_other).bound()
    expected = [(("a", RECORD.value),), (("b", RECORD.value),)]
    assert [one.headers for one in bound.record(RECORD)] == expected
    (made,) = bound.records(InputBatch.of([RECORD]), lambda *_: [])
    assert [one.headers for one in made] == expected


def test_list_that_a_record_function_uses_again_holds_what_each_record_made_of_it() -> None:
    shared: list[OutputRecord] = []

    def cleared_each_time(record: InputRecord) -> list[OutputRecord]:
        shared[:] = copied(record)
        return shared

    (made,) = job(transform=cleared_each_time).bound().records(RECORDS, lambda *_: [])
    shared.clear()
    assert made.values == [b"7", b"8", b"9"]


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("partition", [None, 0])
def test_output_record_that_a_record_function_uses_again_holds_what_each_record_made_of_it(
    partition: int | None, *, listed: bool
) -> None:
    shared = OutputRecord("out", None, partition=partition)

    def set_each_time(record: InputRecord) -> Iterator[OutputRecord]:
        shared.value = record.value
        yield shared
        shared.value = b"again"
        yield shared

    def in_a_list(record: InputRecord) -> list[OutputRecord]:
        shared.value = record.value
        return [shared]

    (made,) = job(transform=in_a_list if listed else set_each_time).bound().records(RECORDS, lambda *_: [])
    assert made.values == ([b"7", b"8", b"9"] if listed else [b"7", b"again", b"8", b"again", b"9", b"again"])


@pytest.mark.parametrize("topic", [None, "", 7])
def test_output_without_a_topic_is_refused_and_not_left_out(topic: Any) -> None:
    def nowhere(record: InputRecord) -> list[OutputRecord]:
        return [OutputRecord(topic, record.value)]

    with pytest.raises(OutputRefusedError, match="not declared"):
        job(transform=nowhere).bound().records(RECORDS, lambda *_: [])


def test_outputs_before_one_that_raises_in_the_same_record_are_not_taken() -> None:
    def late(record: InputRecord) -> list[OutputRecord]:
        refused = OutputRecord("out", record.value, timestamp_ms=0)
        return [OutputRecord("out", b"before"), *([refused] if record.value == b"8" else [])]

    failed: list[InputRecord] = []

    def letter(record: InputRecord, _: Exception) -> list[OutputRecord]:
        failed.append(record)
        return [OutputRecord("out", b"letter")]

    (made,) = job(transform=late).bound().records(RECORDS, letter)
    assert [one.value for one in failed] == [b"8"]
    assert made.values == [b"before", b"letter", b"before"]


def test_outputs_with_and_without_headers_keep_their_order_and_what_they_have() -> None:
    def some(record: InputRecord) -> list[OutputRecord]:
        headers = (("h", record.value),) if record.value == b"8" else ()
        return [OutputRecord("out", record.value, headers=headers), OutputRecord("out", b"plain", b"k")]

    (made,) = job(transform=some).bound().records(RECORDS, lambda *_: [])
    assert list(made) == [one for record in RECORDS for one in some(record)]


def test_batches_that_share_their_lists_hold_what_they_were_made_of() -> None:
    values: list[bytes | None] = []

    def one_after_the_other(batch: InputBatch) -> Iterator[OutputBatch]:
        for value in (b"a", b"b"):
            values[:] = [value] * len(batch)
            yield OutputBatch("out", values, values)

    bound = job(transform=None, transform_batch=one_after_the_other).bound()
    made = bound.batch(InputBatch.of([RECORD]))
    assert [(one.values, one.keys) for one in made] == [([b"a"], [b"a"]), ([b"b"], [b"b"])]


def test_batch_function_that_changes_its_columns_leaves_the_batch_as_it_came() -> None:
    def changing(batch: InputBatch) -> list[OutputBatch]:
        batch.values.clear()
        batch.offsets[0] = 7
        return []

    batch = InputBatch.of([RECORD])
    assert batch.values == [RECORD.value]
    job(transform=None, transform_batch=changing).bound().batch(batch)
    assert list(batch) == [RECORD]


class _Text(str):
    __slots__ = ()


@pytest.mark.parametrize("shape", ["record", "batch"])
@pytest.mark.parametrize("place", ["value", "key"])
def test_buffer_that_could_be_used_again_is_refused(shape: str, place: str) -> None:
    """The client would take a ctypes array, and its content at the time of sending: that of a later record."""
    buffer: Any = ctypes.create_string_buffer(b"x", 1)
    value, key = (buffer, b"k") if place == "value" else (b"v", buffer)
    batch = InputBatch.of([InputRecord("in", 0, 0, b"k", b"v")])
    if shape == "record":
        bound = Job(
            name="j", inputs=["in"], outputs=["out"], transform=lambda _: [OutputRecord("out", value, key)]
        ).bound()
        with pytest.raises(UsageError, match=r"out: a value or key is c_char_Array_1\. Fix: bytes"):
            bound.records(batch, lambda *_: [])
    else:
        bound = Job(
            name="j",
            inputs=["in"],
            outputs=["out"],
            transform_batch=lambda _: [OutputBatch("out", [value], [key])],
        ).bound()
        with pytest.raises(UsageError, match=r"out: a value or key is c_char_Array_1\. Fix: bytes"):
            bound.batch(batch)


def test_text_and_kinds_of_text_are_no_buffers() -> None:
    batch = InputBatch.of([InputRecord("in", 0, 0, b"k", b"v")])
    output = OutputRecord("out", _Text("v"), "k")  # type: ignore[arg-type]  # not declared, and taken by the client
    bound = Job(name="j", inputs=["in"], outputs=["out"], transform=lambda _: [output]).bound()
    (made,) = bound.records(batch, lambda *_: [])
    assert list(made) == [output]


@pytest.mark.parametrize("shape", ["record", "batch"])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a\0b", "librdkafka ends its name at the NUL. Fix: a name without one"),
        ("\xe4\ud800", "it has half of a surrogate pair, and so no form in UTF-8. Fix: a name without it"),
    ],
)
def test_header_name_that_cannot_be_written_makes_its_record_poison(shape: str, name: str, says: str) -> None:
    """librdkafka would write what stands before the NUL; with half of a surrogate pair confluent-kafka ends the process."""
    output = OutputRecord("out", b"v", b"k", headers=(("\xe4", b"0"), (name, b"1")))
    if shape == "record":
        bound = Job(name="j", inputs=["in"], outputs=["out"], transform=lambda _: [output]).bound()
    else:
        columns = OutputBatch("out", [b"v"], [b"k"], headers=[output.headers])
        bound = Job(name="j", inputs=["in"], outputs=["out"], transform_batch=lambda _: [columns]).bound()
        with pytest.raises(ValueError, match=re.escape(says)):
            bound.batch(InputBatch.of([RECORD]))
    failed: list[Exception] = []

    def poison(_: InputRecord, error: Exception) -> list[OutputRecord]:
        failed.append(error)
        return []

    assert bound.records(InputBatch.of([RECORD]), poison) == []
    assert [str(error) for error in failed] == [
        f"output to out: the header {name!r} cannot be written: {says}"
    ]


RECORDS = InputBatch.of([InputRecord("in", 1, offset, b"k", b"%d" % offset) for offset in (7, 8, 9)])


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (None, "returned NoneType"),
        (["text"], "returned str"),
        (
            [OutputRecord("out", bytearray(b"v"))],  # type: ignore[arg-type]
            "a value or key is bytearray",
        ),
        ([OutputRecord("elsewhere", b"v")], "not declared"),
    ],
)
@pytest.mark.parametrize("in_batches", [False, True])
def test_refused_output_is_told_with_the_place_of_its_input(
    made: object, says: str, *, in_batches: bool
) -> None:
    def at_eight(record: InputRecord) -> Any:
        return made if record.offset == 8 else copied(record)

    def batch(records: InputBatch) -> Any:
        for record in records:
            if record.offset == 8 and isinstance(made, list):
                return [OutputBatch(o.topic, [o.value]) if isinstance(o, OutputRecord) else o for o in made]
            if record.offset == 8:
                return made
        return []

    declared = job(transform=None, transform_batch=batch) if in_batches else job(transform=at_eight)
    bound = declared.bound()
    with pytest.raises(UsageError, match=rf"^in\[1\] offset 8: .*{says}"):
        if in_batches:
            bound.batch(RECORDS)
        else:
            bound.records(RECORDS, lambda _, error: pytest.fail(str(error)))


def test_output_that_only_a_whole_batch_makes_is_told_with_the_place_of_the_batch() -> None:
    def batch(records: InputBatch) -> list[OutputBatch]:
        return [OutputBatch("out" if len(records) == 1 else "elsewhere", [b"v"])]

    with pytest.raises(UsageError, match=r"^in\[1\] offsets 7 to 9: .*not declared"):
        job(transform=None, transform_batch=batch).bound().batch(RECORDS)


async def awaited(_: object) -> list[OutputRecord]:
    return []


class Awaited:
    async def __call__(self, _: object) -> list[OutputRecord]:
        return []


def of_two(_record: object, _more: object) -> list[OutputRecord]:
    return []


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        (
            {"transform": of_two},
            r"transform takes \(_record.*, _more.*\).* one argument, the record",
        ),
        ({"transform": awaited}, "transform is async.*Fix: def"),
        ({"transform": Awaited()}, "transform is async.*Fix: def"),
        ({"transform": 3}, "transform is int, not a function"),
        ({"transform_batch": of_two}, "transform_batch takes .* one argument, the batch"),
        ({"transform_factory": lambda: 3}, "transform is int, not a function"),
        ({"transform_factory": lambda: of_two}, "transform takes"),
        (
            {"transform_factory": copied},
            "transform_factory takes .* no argument, for the job has no settings=",
        ),
        ({"transform_batch_factory": lambda: None}, "the factory of its transform returned nothing"),
    ],
)
def test_function_that_cannot_be_called_ends_the_start_and_makes_no_record_poison(
    declared: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        job(**({"transform": None} | declared)).bound()


@pytest.mark.parametrize(
    "transform",
    [copied, partial(of_two, 1), type("Of", (), {"__call__": lambda _self, _record: []})(), print],
)
def test_whatever_can_be_called_with_a_record_is_a_transform(transform: Any) -> None:
    job(transform=transform).bound()


def test_signal_in_the_import_of_a_module_ends_the_process_as_a_signal(tmp_path: Path) -> None:
    """It was called a module that calls sys.exit(143), with exit code 2."""
    (tmp_path / "module_that_is_ended.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n"
    )
    before = signal.signal(signal.SIGTERM, end_at_signal)
    try:
        with pytest.raises(EndedBySignal) as ended:
            load_named("module_that_is_ended:job", tmp_path, Job, "eos.Job")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 128 + signal.SIGTERM

"""Trial options: what `eos prove` can be asked for, said once: for its command line, for the trial, and for the line that repeats it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from shlex import quote
from typing import Annotated, get_type_hints

from eos.base.option import Option

FAULTS = 20
COPIED = 100_000
SAMPLE_INPUT = "sample_input"


PARTITIONER = Option(
    "By which the outputs were written: murmur2_random, as eos and Java do, or consistent_random, librdkafka's own default.",
    "NAME",
    "--partitioner",
)


@dataclass(frozen=True, kw_only=True)
class TrialOptions:
    """Each field is an option."""

    seed: Annotated[int | None, Option("Decides input and faults; else drawn.", "N")] = None
    faults: Annotated[int | None, Option(f"How many happen; {FAULTS} if not given.", "N", min=1)] = None
    minutes: Annotated[float | None, Option("Instead: for how long they happen.", "M", min=0.1)] = None
    only: Annotated[
        str | None,
        Option(
            "Of kill, term, pause, late, drop, error, zombie, input, broker, rebalance, expiry, database; else all. "
            "KIND/WAY is one of its ways alone: broker/paused.",
            "KIND,…",
        ),
    ] = None
    brokers: Annotated[int, Option("Brokers of the cluster.", "1|3")] = 1
    partitions: Annotated[int, Option("Of each topic.", "N", min=1)] = 4
    rate: Annotated[int, Option("Input records per second.", "N", min=1)] = 500
    quiet: Annotated[
        float, Option("Times the quiet between faults, which is 0.5 to 8 s.", "FACTOR", min=0.0)
    ] = 1.0
    each: Annotated[
        bool, Option("Judge after each fault, too: input waits until the job has caught up.", name="--each")
    ] = False
    source: Annotated[
        str | None,
        Option(
            f"The input's values, one a line, or records as .jsonl; or what makes it from a seed; else {SAMPLE_INPUT} in the "
            "job's module.",
            "FILE|MODULE:FUNCTION",
            "--input",
        ),
    ] = None
    topics: Annotated[
        list[str] | None,
        Option(
            "Instead: a copy of this topic, of the cluster in the settings; may be repeated.",
            "TOPIC[=INPUT]",
            "--input-topic",
        ),
    ] = None
    copied: Annotated[
        int | None,
        Option(f"Of it, the newest ones; {COPIED:,} if not given.", "N", "--input-records", min=1),
    ] = None
    command: Annotated[
        str | None,
        Option(
            "Inject faults into this program instead of `eos run`: the job says its inputs, outputs and transform.",
            "COMMAND",
            "--run",
        ),
    ] = None
    master: Annotated[str, Option("Of a job for Spark: as of `eos spark run`.", "URL")] = (
        "local-cluster[2,1,1024]"
    )
    conf: Annotated[
        list[str] | None, Option("One setting of Spark; may be repeated.", "KEY=VALUE", "--conf")
    ] = None
    judge: Annotated[
        str | None,
        Option(
            "Of a job for Spark: the eos.Job that makes the same of each record, if it does not name one.",
            "MODULE:NAME",
            "--judge-by",
        ),
    ] = None
    partitioner: Annotated[str, PARTITIONER] = "murmur2_random"
    no_order: Annotated[
        bool,
        Option(
            "Do not compare the order: of a batch function that returns several batches for one topic.",
            name="--no-order",
        ),
    ] = False


def words_of(options: TrialOptions) -> list[str]:
    """The options that are not as they would be by themselves, for a shell."""
    hints, words = get_type_hints(TrialOptions, include_extras=True), list[str]()
    for field in fields(TrialOptions):
        value = getattr(options, field.name)
        if value in (field.default, [], ()):
            continue
        name = hints[field.name].__metadata__[0].name or f"--{field.name}"
        for one in value if isinstance(value, Sequence) and not isinstance(value, str) else [value]:
            words += (
                [name] if one is True else [name, quote(f"{one:g}" if isinstance(one, float) else str(one))]
            )
    return words

"""What `eos prove` is to try: the job and the one that it is judged by, the kinds of faults, the input."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eos.cli.exit import complain
from eos.cli.options import GivenJob, load_job, pairs
from eos.errors import ConfigError
from eos.prove.trial_options import COPIED, SAMPLE_INPUT, TrialOptions

if TYPE_CHECKING:
    from eos.identity import Identity
    from eos.job import Declaration
    from eos.prove.ends import Ends
    from eos.prove.faults import FaultKind
    from eos.prove.load_generator import Feed
    from eos.prove.runtime import Runtime
    from eos.settings import Settings


def declared(given: GivenJob, program: str | None) -> Declaration:
    """The job that is tried.

    Raises:
        ConfigError: there is no such job, or it is none for `--run`.
    """
    job = given.declaration()
    if program is not None and job.kind.on_spark:
        raise ConfigError(
            f"--run: {given.reference} is for Spark, which `eos spark run` runs. Fix: leave --run out"
        )
    return job


def judge_of(
    job: Declaration, judged_by: str, reference: str, named: str | None, app_dir: Path
) -> Declaration:
    """The job that says what the output must be: by its transform, or, where a database is at one end, by itself.

    Raises:
        ConfigError: there is none, or it is one of other topics.
    """
    if judged_by != "topics":
        if named is not None:
            raise ConfigError(
                f"--judge-by: {reference} says itself what it writes. Fix: leave --judge-by out"
            )
        return _of_a_database(judged_by, reference, app_dir)
    if named is not None and job.applied is job:
        raise ConfigError(f"--judge-by: {reference} says itself what it writes. Fix: leave --judge-by out")
    judge = load_job(named, app_dir) if named is not None else job.applied
    if judge is None:
        raise ConfigError(
            f"{reference} does not say what becomes of a single record, so its output can't be judged. Fix: --judge-by "
            "MODULE:NAME, an eos.Job that makes the same records of each one; or SparkJob.applying(…), StreamJob.applying(…)"
        )
    for what, ours, theirs in (
        ("reads", set(job.inputs), set(judge.inputs)),
        ("writes", set(job.written_topics), set(judge.written_topics)),
    ):
        if ours != theirs:
            raise ConfigError(
                f"{reference} {what} {', '.join(sorted(ours))}, and the job that it is judged by {', '.join(sorted(theirs))}. "
                "Fix: --judge-by one of the same topics"
            )
    return judge


def _of_a_database(judged_by: str, reference: str, app_dir: Path) -> Declaration:
    """The job; refused if nothing says which rows it makes."""
    from eos.local.postgres_home import require_postgres
    from eos.references import load_named

    require_postgres()
    if judged_by == "rows":
        from eos.sql.outbox_job import OutboxJob

        return load_named(reference, app_dir.absolute(), OutboxJob, "eos.sql.OutboxJob")
    from eos.sql.job import SqlJob

    job = load_named(reference, app_dir.absolute(), SqlJob, "eos.sql.SqlJob")
    if job.apply is not None:
        raise ConfigError(
            f"{reference}: apply= runs SQL of its own, and nothing says which rows it makes. Fix: a SqlJob with transform= that makes "
            "the same rows, and --run for the program"
        )
    return job


def connector_of(job: Declaration, settings: Settings, conf: Sequence[str]) -> Sequence[Path]:
    """The jars that a job for Spark needs; none for one of `eos run`.

    Raises:
        ConfigError: PySpark, Java or the connector is missing.
    """
    if not job.kind.on_spark:
        return ()
    from eos.local.connector import provide_connector
    from eos.local.java import find_java

    for _ in pairs("--conf", conf, "KEY=VALUE", "spark.driver.memory=2g"):
        pass
    local = settings.local
    return provide_connector(local.directory, java=find_java("Spark"), progress=complain, jars=local.jars)


def kinds(
    only: str | None, settings: Settings, runtime: Runtime, ends: Ends
) -> tuple[Sequence[FaultKind], Mapping[FaultKind, Sequence[str]]]:
    """The kinds of faults, and of some of them only these ways.

    Raises:
        ConfigError: one that is asked for does not exist, or can't happen to this job.
    """
    from eos.prove.faults import WAYS_OF, FaultKind

    # Some ways have a comma in their names, but no kind comes behind it.
    words = [
        tuple(word.strip().partition("/"))
        for word in re.split(r",(?=\s*\w+\s*(?:/|,|$))", only or "")
        if word
    ]
    names = [name for name, _, _ in words] or list(FaultKind)
    if unknown := sorted(set(names) - set(FaultKind)):
        raise ConfigError(f"--only {','.join(unknown)}: no such kind of fault. Fix: {', '.join(FaultKind)}")
    ways: dict[FaultKind, list[str]] = {}
    for name, slash, way in words:
        if slash and way not in (
            known := [one for one in dict.fromkeys(WAYS_OF.get(FaultKind(name), ())) if one]
        ):
            raise ConfigError(
                f"--only {name}/{way}: {name} has no such way. Fix: {', '.join(known) or f'--only {name}'}"
            )
        if slash:
            ways.setdefault(FaultKind(name), []).append(way)
    why_not = {**ends.impossible, **runtime.impossible}
    if not runtime.impossible and FaultKind.REBALANCE not in why_not and settings.ownership.mode != "group":
        why_not[FaultKind.REBALANCE] = (
            "with ownership.mode = 'partition' no instance can join. Fix: leave it out, or ownership.mode=group"
        )
    if only and (asked := [name for name in names if name in why_not]):
        raise ConfigError(f"--only {asked[0]}: {why_not[asked[0]]}")
    return [kind for kind in FaultKind if kind in names and kind not in why_not], ways


def feed_of_source(named: str | None, reference: str, app_dir: Path, topics: Sequence[str]) -> Feed:
    """What makes the input: a file, a function, or `sample_input` of the job's module.

    Raises:
        ConfigError: there is none, or it is wrong.
    """
    from eos.prove.load_generator import feed_of_file
    from eos.references import load_named

    if named is not None and (":" not in named or Path(named).is_file()):
        return feed_of_file(Path(named), topics)
    where = named or f"{reference.partition(':')[0]}:{SAMPLE_INPUT}"
    feed: Any = load_named(where, app_dir.absolute(), object, "function of a seed")
    if named is None and feed is None:
        raise ConfigError(
            "the job has no input to be tried with. Fix: --input with a FILE or a MODULE:FUNCTION, or a function "
            f"{SAMPLE_INPUT}(seed) in the job's module; it yields values, (key, value) pairs, or eos.OutputRecord"
        )
    what = f"--input {where}" if named is not None else where
    if not callable(feed):
        raise ConfigError(
            f"{what}: {'that' if feed is not None else 'there'} is no function. Fix: one that takes a seed and yields the input"
        )

    def made(seed: int) -> Iterator[Any]:
        try:
            return iter(feed(seed))
        except Exception as error:
            raise ConfigError(
                f"{what}({seed}) raised {type(error).__name__}: {error}. Fix: a function that takes a seed and yields the input"
            ) from error

    return made


def feed_of_topics(asked: TrialOptions, job: Identity, settings: Settings) -> Feed:
    """A copy of topics of the cluster that the settings name.

    Raises:
        ConfigError: a name is wrong, or there is no such topic, or no record in it.
        UnavailableError: the cluster does not answer.
    """
    from eos.prove.load_generator import feed_of
    from eos.prove.topic_sample import sampled_records

    topics = _topics(asked.topics or (), job)
    complain(f"reading {', '.join(topics)} at {settings.kafka.bootstrap_servers}")
    limit = asked.copied or COPIED
    records = sampled_records(settings, job.group, topics, limit=limit, partitions=asked.partitions)
    return feed_of(records, "--input-topic")


def _topics(named: Sequence[str], job: Identity) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for text in named:
        topic, _, given = text.partition("=")
        found[topic] = given or topic
        if found[topic] not in (inputs := job.inputs or job.outputs):
            raise ConfigError(
                f"--input-topic {text}: {found[topic]!r} is no input of the job. Fix: TOPIC=INPUT with one of "
                f"{', '.join(inputs)}"
            )
    return found

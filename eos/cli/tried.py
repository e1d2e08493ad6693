"""What `eos prove` is to try: the job and the one that it is judged by, the kinds of faults, the input."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eos.cli.ending import complain
from eos.cli.options import load_declaration, load_job, pairs
from eos.errors import ConfigError

if TYPE_CHECKING:
    from eos.job import Declaration, Job
    from eos.prove.faults import Kind
    from eos.prove.feeding import Feed
    from eos.prove.trial import OnSpark
    from eos.settings import Settings

SAMPLE_INPUT = "sample_input"
COPIED = 100_000


def declared(reference: str, app_dir: Path, program: str | None) -> Declaration:
    """The job that is tried.

    Raises:
        ConfigError: there is no such job, or it is none for `--run`.
    """
    job = load_declaration(reference, app_dir)
    if program is not None and not _is_a_loops(job):
        raise ConfigError(
            f"--run: {reference} is for Spark, which `eos spark run` runs. Fix: leave --run out"
        )
    return job


def judge_of(job: Declaration, reference: str, named: str | None, app_dir: Path) -> Job:
    """The job whose transform says what the output must be.

    Raises:
        ConfigError: there is none, or it is one of other topics.
    """
    from eos.job import Job

    if isinstance(job, Job):
        if named is not None:
            raise ConfigError(
                f"--judge-by: {reference} says itself what it writes. Fix: leave --judge-by out"
            )
        return job
    judge = load_job(named, app_dir) if named is not None else getattr(job, "applied", None)
    if not isinstance(judge, Job):
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


def on_spark(
    job: Declaration, settings: Settings, master: str, conf: Sequence[str], judge: str | None
) -> OnSpark | None:
    """What a trial has to know of a job for Spark; None for one of `eos run`.

    Raises:
        ConfigError: PySpark, Java or the connector is missing.
    """
    if _is_a_loops(job):
        return None
    from eos.local.connector import provide_connector
    from eos.local.java import find_java
    from eos.prove.trial import OnSpark
    from eos.spark.job import SparkJob

    for _ in pairs("--conf", conf, "KEY=VALUE", "spark.driver.memory=2g"):
        pass
    local = settings.local
    jars = provide_connector(local.directory, java=find_java("Spark"), progress=complain, jars=local.jars)
    return OnSpark(
        kind="batch" if isinstance(job, SparkJob) else "stream",
        name=job.name,
        read=job.read_topics,
        master=master,
        conf=conf,
        jars=jars,
        judge=judge,
    )


def kinds(
    only: str | None, settings: Settings, spark: OnSpark | None
) -> tuple[Sequence[Kind], Mapping[Kind, Sequence[str]]]:
    """The kinds of faults, and of some of them only these ways.

    Raises:
        ConfigError: one that is asked for does not exist, or can't happen to this job.
    """
    from eos.prove.faults import WAYS_OF, Kind

    # Some ways have a comma in their names, but no kind comes behind it.
    words = [
        tuple(word.strip().partition("/"))
        for word in re.split(r",(?=\s*\w+\s*(?:/|,|$))", only or "")
        if word
    ]
    names = [name for name, _, _ in words] or list(Kind)
    if unknown := sorted(set(names) - set(Kind)):
        raise ConfigError(f"--only {','.join(unknown)}: no such kind of fault. Fix: {', '.join(Kind)}")
    ways: dict[Kind, list[str]] = {}
    for name, slash, way in words:
        if slash and way not in (known := [one for one in dict.fromkeys(WAYS_OF.get(Kind(name), ())) if one]):
            raise ConfigError(
                f"--only {name}/{way}: {name} has no such way. Fix: {', '.join(known) or f'--only {name}'}"
            )
        if slash:
            ways.setdefault(Kind(name), []).append(way)
    why_not: dict[str, str] = {}
    if spark is not None:
        fix = "Fix: leave it out; kill and pause hit drivers, executors and tasks"
        why_not = {
            Kind.REBALANCE: f"Spark divides the work, and nothing joins a group. {fix}",
            Kind.ZOMBIE: f"a driver has no ordinal under which another one is started. {fix}",
            Kind.TERM: f"a driver that is asked to end is killed, in effect. {fix}",
        }
    elif settings.ownership.mode != "group":
        why_not[Kind.REBALANCE] = (
            "with ownership.mode = 'partition' no instance can join. Fix: leave it out, or ownership.mode=group"
        )
    if only and (asked := [name for name in names if name in why_not]):
        raise ConfigError(f"--only {asked[0]}: {why_not[asked[0]]}")
    return [kind for kind in Kind if kind in names and kind not in why_not], ways


def feed_of_source(named: str | None, reference: str, app_dir: Path, job: Job) -> Feed:
    """What makes the input: a file, a function, or `sample_input` of the job's module.

    Raises:
        ConfigError: there is none, or it is wrong.
    """
    from eos.prove.feeding import feed_of_file
    from eos.references import load_named

    if named is not None and (":" not in named or Path(named).is_file()):
        return feed_of_file(Path(named), job.inputs)
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


def feed_of_topics(
    named: Sequence[str], limit: int | None, job: Job, settings: Settings, partitions: int
) -> Feed:
    """A copy of topics of the cluster that the settings name.

    Raises:
        ConfigError: a name is wrong, or there is no such topic, or no record in it.
        UnavailableError: the cluster does not answer.
    """
    from eos.prove.copied import copied_records
    from eos.prove.feeding import feed_of

    topics = _topics(named, job)
    complain(f"reading {', '.join(topics)} at {settings.kafka.bootstrap_servers}")
    group = settings.group_for(job.name)
    records = copied_records(settings, group, topics, limit=limit or COPIED, partitions=partitions)
    return feed_of(records, "--input-topic")


def _topics(named: Sequence[str], job: Job) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for text in named:
        topic, _, given = text.partition("=")
        found[topic] = given or topic
        if found[topic] not in job.inputs:
            raise ConfigError(
                f"--input-topic {text}: {found[topic]!r} is no input of the job. Fix: TOPIC=INPUT with one of "
                f"{', '.join(sorted(job.inputs))}"
            )
    return found


def _is_a_loops(job: Declaration) -> bool:
    from eos.job import Job

    return isinstance(job, Job)

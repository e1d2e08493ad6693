"""The demonstration: the refunds processor on a real broker, processes killed inside transactions, and the proof.

It does what an operator would do by hand. First act: start Kafka, load settlements, run ``eos run`` with two
workers, kill one with SIGKILL while its transaction is open, wait for its replacement. Second act: the same input
as a batch on a standalone Spark cluster, an executor killed. After each, the result is verified with code that
shares nothing with them but the transform. Third act: from the tables of one database through Kafka to those of
another, each of the three processes killed; the books of both are compared by SQL. The exit code is 0 only if all are
exactly once.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column

from eos import EosError, OutputBatch, Settings, TransactionalProducer
from eos.exits import ExitCode
from eos.local import QUICK_START, LocalKafka, LocalSpark
from eos.local.connector import provide_connector
from eos.local.java import find_java
from eos.local.topics import create_topics, empty_topics
from eos.ops.verifier.report import VerificationReport
from eos.ops.verifier.verify import verify
from jobs import demo_loop, demo_spark, refunds
from jobs.demo_books import compare
from jobs.demo_databases import new_databases
from jobs.demo_report import Accident, show_accident, show_books, show_report, show_settlement_report
from jobs.demo_transactions import aborted
from jobs.demo_way import run_and_kill_each
from jobs.merchants import MERCHANTS, merchants
from jobs.settlements import KeyValue, load, settlements

PARTITIONS = 4
_SETTLEMENTS_OF_TABLES = 2_000
_VERIFY_DEADLINE_S = 120.0
_BAR_WIDTH = 16
_WIDE = 120  # columns: from here on nothing is cut


def main() -> int:
    """The command; returns its exit code."""
    options = _options()
    console = Console(highlight=False)
    with _terminated_like_interrupted():
        try:
            return int(_Demonstration(console, options.records, options.directory).run(spark=options.spark))
        except KeyboardInterrupt:
            console.print("\ninterrupted; everything that was started has been stopped")
            return 130
        except ProcessLookupError:
            console.print("\n[red]a worker ended by itself; its log is in the demo's folder[/]")
            return int(ExitCode.UNEXPECTED)
        except EosError as error:
            console.print(f"\n[red]{type(error).__name__}[/]: {error}")
            return int(ExitCode.UNEXPECTED)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m jobs.demo", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--records", type=int, default=100_000, help="settlements to load (default 100000)")
    parser.add_argument("--directory", type=Path, default=Path(".eos"), help="where jars, data and logs go")
    parser.add_argument("--no-spark", dest="spark", action="store_false", help="leave Spark out")
    return parser.parse_args()


class _Demonstration:
    def __init__(self, console: Console, records: int, directory: Path) -> None:
        self._console = console
        self._records = records
        self._directory = directory

    def run(self, *, spark: bool) -> ExitCode:
        """All acts, or all but that of Spark."""
        self._console.print("[bold]eos: exactly once, shown by accidents[/]\n")
        with self._kafka() as kafka:
            settings = _settings(kafka.bootstrap_servers)
            if not self._first_act(kafka, settings):
                return ExitCode.NOT_EXACTLY_ONCE
            if spark and not self._second_act(kafka, settings):
                return ExitCode.NOT_EXACTLY_ONCE
            if not self._third_act(kafka):
                return ExitCode.NOT_EXACTLY_ONCE
        self._console.print("\n[bold green]exactly once[/]: nothing lost, nothing doubled, nothing torn")
        return ExitCode.DONE

    def _first_act(self, kafka: LocalKafka, settings: Settings) -> bool:
        with _progress(self._console) as progress:
            create_topics(
                kafka, dict.fromkeys((*refunds.job.inputs, *refunds.job.written_topics), PARTITIONS)
            )
            _load(progress, settings, refunds.SETTLEMENTS, settlements(self._records, seed=1), self._records)
            accident, code = demo_loop.run_and_kill_worker(progress, settings, self._records, self._directory)
            aborted = 0 if accident is None else _aborted_by(accident, kafka)
            report = _verify(progress, settings)
        return self._shown(report, accident, aborted, code)

    def _second_act(self, kafka: LocalKafka, settings: Settings) -> bool:
        self._console.print("\n[bold]the same settlements as a batch on Spark[/]\n")
        with _progress(self._console) as progress:
            task = progress.add_task("Spark cluster", total=None)
            jars = provide_connector(self._directory, java=find_java(), progress=_described(progress, task))
            with LocalSpark(self._directory / "demo", 2, progress=_described(progress, task)) as cluster:
                progress.update(task, description="Spark cluster: ready", total=1, completed=1)
                empty_topics(kafka, dict.fromkeys(refunds.job.written_topics, PARTITIONS))
                create_topics(kafka, {MERCHANTS: 1, demo_spark.REPORT_TOPIC: 1})
                _load(progress, settings, MERCHANTS, merchants(), 1000)
                listed = ",".join(map(str, jars))
                accident, code = demo_spark.run_and_kill_executor(
                    progress, settings, cluster, jars=listed, partitions=PARTITIONS, directory=self._directory
                )
            # The report only reads what the batch has read, so both go on at once.
            with demo_spark.reporting(
                progress, settings, jars=listed, directory=self._directory
            ) as merchants_of_report:
                aborted = 0 if accident is None else _aborted_by(accident, kafka)
                report = _verify(progress, settings.model_copy(update={"group": demo_spark.BATCH_GROUP}))
                merchants_shown = merchants_of_report()
        show_settlement_report(self._console, merchants_shown)
        return self._shown(report, accident, aborted, code)

    def _third_act(self, kafka: LocalKafka) -> bool:
        self._console.print("\n[bold]the whole way: from the tables of one database to those of another[/]\n")
        topics = (*refunds.job.inputs, *refunds.job.written_topics)
        with ExitStack() as stack:
            with _progress(self._console) as progress:
                task = progress.add_task("databases", total=None)
                folder = self._directory / "demo"
                databases = stack.enter_context(new_databases(folder, _described(progress, task)))
                empty_topics(kafka, dict.fromkeys(topics, PARTITIONS))
                progress.update(task, description=f"{databases.title}: ready", total=1, completed=1)
                outcome = run_and_kill_each(progress, kafka, databases, _SETTLEMENTS_OF_TABLES, logs=folder)
                books = compare(databases.application, databases.tables)
            if not databases.are_postgresql:
                self._console.print(
                    "no PostgreSQL is installed (extra local-postgres): two files of SQLite instead\n"
                )
            show_books(self._console, books, outcome)
            undone = sum(stage.inside.was_undone() for stage in outcome.stages)
        if not books.are_exact or any(outcome.exit_codes):
            self._console.print("\n[bold red]NOT exactly once[/]")
            return False
        if undone < len(outcome.stages):
            self._console.print("\n[red]a transaction was not undone[/]: the kill met none")
            return False
        return True

    @contextmanager
    def _kafka(self) -> Iterator[LocalKafka]:
        with _progress(self._console) as progress:
            task = progress.add_task("Apache Kafka", total=None)
            kafka = LocalKafka(
                self._directory / "demo",
                jars=self._directory / "jars",
                heap_mb=1024,
                jvm_options=QUICK_START,  # it lives for a minute or two
                progress=_described(progress, task),
            )
            kafka.wipe()
            kafka.start()
            progress.update(task, description="Apache Kafka: ready", total=1, completed=1)
        with kafka:
            yield kafka

    def _shown(self, report: VerificationReport, accident: Accident | None, aborted: int, code: int) -> bool:
        show_report(self._console, report)
        if accident is not None:
            show_accident(self._console, accident, aborted)
        if not (report.exactly_once and code == 0 and report.records == self._records):
            self._console.print("\n[bold red]NOT exactly once[/]")
            return False
        if aborted < 1:
            self._console.print("\n[red]no transaction was aborted[/]: the kill met none")
            return False
        return True


def _settings(bootstrap_servers: str) -> Settings:
    overrides = {"kafka.bootstrap_servers": bootstrap_servers, "group": demo_loop.GROUP}
    return Settings.load(demo_loop.CONFIG, overrides)


def _load(
    progress: Progress, settings: Settings, topic: str, records: Iterable[KeyValue], count: int
) -> None:
    task = progress.add_task(f"load {topic}", total=count)
    with TransactionalProducer(settings.model_copy(update={"group": topic}), app="demo-load") as producer:

        def write(batch: OutputBatch) -> None:
            with producer.transaction() as txn:
                txn.produce_batch(batch.topic, batch)

        load(records, topic, write, progress=lambda done: progress.advance(task, done))


# --- the proof -------------------------------------------------------------------------------------------


def _aborted_by(accident: Accident, kafka: LocalKafka) -> int:
    return aborted(accident.open_shards.values(), refunds.job.written_topics, kafka)


def _verify(progress: Progress, settings: Settings) -> VerificationReport:
    task = progress.add_task("verify", total=None)

    def on_progress(stage: str, done: int, total: int) -> None:
        progress.update(task, description=f"verify: {stage}", completed=done, total=total)

    return verify(refunds.job, settings, timeout_s=_VERIFY_DEADLINE_S, on_progress=on_progress)


def _described(progress: Progress, task: TaskID) -> Callable[[str], None]:
    """Shows the steps of a task behind its name."""
    name = progress.tasks[task].description
    return lambda line: progress.update(task, description=f"{name}: {line}")


def _progress(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        # Of a line that is too long for the terminal, the description gives way.
        TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=_BAR_WIDTH),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        expand=console.width < _WIDE,
        console=console,
    )


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C, so that everything that was started is stopped."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())

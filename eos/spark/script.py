"""The frame of a script that spark-submit runs: its log, its session, and the exit codes of `eos run`."""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from eos.errors import EosError
from eos.exits import ExitCode, exit_code_of
from eos.kafka.librdkafka import librdkafka_version
from eos.settings import Settings
from eos.spark.classic import require_classic
from eos.spark.session import LAST_POLLS_DROPPED
from eos.spark.session_end import stopping

log = logging.getLogger("eos.spark")


def parser(what: str, begins: str) -> ArgumentParser:
    """The options of every script.

    Args:
        what: the script does.
        begins: what --start is for.
    """
    options = ArgumentParser(description=what)
    options.add_argument("--config", "-c", type=Path, metavar="FILE", help="TOML file of settings")
    options.add_argument("--start", choices=("earliest", "latest"), help=f"once: where {begins}")
    return options


def run_submitted(
    name: str, load: Callable[[], Settings], work: Callable[[SparkSession, Settings], None]
) -> NoReturn:
    """Load the settings, do the work in the session that the script was submitted with, and exit.

    Args:
        name: of the job, and of the application unless spark-submit names it.
        load: the settings, checked: a mistake in them is said before Spark starts.
        work: what the script is for.

    Raises:
        SystemExit: always.
    """
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    log.setLevel(logging.INFO)
    log.info("started: %s, pyspark %s, librdkafka %s", name, pyspark.__version__, librdkafka_version())
    try:
        settings = load()
        with stopping(spark := _session(name)):
            work(spark, settings)
    except EosError as error:
        log.error("%s", error)  # noqa: TRY400 - the traceback may quote records
        sys.exit(int(exit_code_of(error)))
    sys.exit(int(ExitCode.DONE))


def _session(name: str) -> SparkSession:
    # Before the Java machine is known, a SparkConf does not see what spark-submit was given.
    SparkContext._ensure_initialized()  # noqa: SLF001 - there is no public name for it
    builder, submitted = SparkSession.builder.appName(name), SparkConf()
    for option, value in LAST_POLLS_DROPPED.items():
        builder = builder.config(option, submitted.get(option, value))
    spark = builder.getOrCreate()
    require_classic(spark)
    return spark

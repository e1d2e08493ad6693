"""Trying: the job of a trial, and the database that it needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from eos.prove.source import Source
from eos.prove.trial import Trial
from eos.prove.trial_database import trial_database
from eos.prove.tried import OfTopics, Tried
from eos.settings import Settings


@contextmanager
def tried(trial: Trial, job: Any, settings: Settings, source: Source) -> Iterator[Tried]:
    """What is tried; a database of its own ends with the block.

    Args:
        trial: what is tried.
        job: what it is judged by, of the kind that ``trial.job`` says.
        settings: the job's, at the brokers' own addresses.
        source: of the input.

    Raises:
        ConfigError: no PostgreSQL is installed, or the machine does not allow it.
        UnavailableError: the database did not start.
    """
    if not trial.ends.has_database:
        yield OfTopics(trial, job, settings, source)
        return
    own = trial.directory / "database"
    if trial.job.judged_by == "tables":
        from eos.prove.tried_tables import OfTables

        with trial_database(own, settings, tables=job.tables, own_tables=job.own_tables) as database:
            yield OfTables(trial, job, settings, source, database)
    else:
        from eos.prove.tried_rows import OfRows

        with trial_database(own, settings, tables=(), own_tables=job.own_tables) as database:
            yield OfRows(trial, job, settings, source, database)

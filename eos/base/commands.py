"""Commands: what an error tells its reader to type, about the job and the cluster that this process was started for.

How a process was started is one fact about it, so it is kept once, for the process: most errors are raised far below the
command line, where neither the job's name nor the options are known.
"""

from __future__ import annotations

import shlex
from itertools import pairwise
from typing import NamedTuple

COMMAND_LINE = "command line"  # the source of settings that are options of a command


class Started(NamedTuple):
    """The words by which a process was started.

    Attributes:
        job: the job, and where it is found, as a shell takes it.
        options: those that say which settings and which cluster, word by word.
        assignments: the settings that were given one by one, each as NAME=VALUE.
        forgotten: the directory of a Kafka of ``eos local start`` that runs, and that ``--local`` would have meant.
    """

    job: str = "MODULE:NAME"
    options: tuple[str, ...] = ()
    assignments: tuple[str, ...] = ()
    forgotten: str = ""


_started = Started()


def started_with(words: Started) -> None:
    """Note how this process was started; a worker is told by its parent."""
    global _started  # noqa: PLW0603 - a fact about the process
    _started = words


def started() -> Started:
    """How this process was started; without a command line, the words are those of a help text."""
    return _started


def forgotten_local() -> str:
    """That ``--local`` may have been forgotten, as the begin of a fix; or nothing."""
    if not _started.forgotten:
        return ""
    return f"--local, for the Kafka of `eos local start` that runs in {_started.forgotten}; or "


def suggested(name: str, *words: str, job: bool = False) -> str:
    """A command of eos about the same cluster, as it can be typed.

    A command that changes something only previews it in this form: no word of it is ``--yes``.

    Args:
        name: of the command: ``offsets set``.
        words: what it is told. A setting that they give takes the place of what this process was given for it.
        job: whether it takes the job.
    """
    told = {_name(word) for option, word in pairwise(words) if option == "--set"}
    kept = [one for one in _started.assignments if _name(one) not in told]
    options = [*_started.options, *(word for one in kept for word in ("--set", one))]
    return " ".join(["eos", name, *([_started.job] if job else []), *map(shlex.quote, [*words, *options])])


def _name(assignment: str) -> str:
    return assignment.partition("=")[0].strip()

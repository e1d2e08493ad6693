"""Trials: cells that are command lines of `eos prove`, each on a cluster of its own."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.proof.row import Cell, Outcome

REPOSITORY = Path(__file__).parents[2]
_END_S = 60.0
_AT_MOST = 5  # times as long as it takes on a machine with nothing else to do, and a quarter of an hour
_TEXT = 2_000


def trial(arguments: str, *, minutes: float, naive: bool = False) -> Cell:
    """One `eos prove`.

    Args:
        arguments: its command line; paths in it are relative to the repository.
        minutes: about how long it takes.
        naive: whether the program is wrong on purpose, and has to be convicted.
    """
    return Cell(
        name=arguments,
        run=partial(_tried, arguments, naive=naive, at_most_s=minutes * 60 * _AT_MOST + 900),
        minutes=minutes,
    )


def _tried(arguments: str, directory: Path, *, naive: bool, at_most_s: float) -> Outcome:
    figures, log = directory / "figures.json", directory / "prove.log"
    command = ["-m", "eos.cli", "prove", *shlex.split(arguments), "--figures", str(figures)]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "TMPDIR": str(directory),
    }
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,  # a Ctrl-C is passed on once: a second one would cut its tidying up short
        )
        try:
            code = process.wait(at_most_s)
        finally:
            _end(process)
    if not figures.exists():
        raise RuntimeError(f"exit code {code}: {log.read_text(errors='replace')[-_TEXT:]}")
    found = json.loads(figures.read_text())
    against = found["against"]  # a wrong program that only did not catch up has not been found out
    return Outcome(
        faults=found["faults"],
        records=found["records"],
        anomalies=() if naive else [*against, *found["unfinished"]],
        convicted=bool(against) if naive else None,
        committed_unknown=found["unknown"].get("committed", 0),
        aborted_unknown=found["unknown"].get("aborted", 0),
        recoveries_s=found["recoveries_s"],
        note=against[0] if naive and against else "",
        again=found["again"].replace(f"{REPOSITORY}/", ""),  # as it is called there
        looks=found["looks"],
        what=found["faults_by_what"],
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_END_S)

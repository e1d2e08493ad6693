"""Bring the master and the workers of a Spark cluster up, and wait until the master counts every worker."""

from __future__ import annotations

import http.client
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eos.base.deadline import Deadline
from eos.errors import RetriableError
from eos.local.launch import ended, last_lines
from eos.local.layout import SparkLayout
from eos.local.ports import HOST
from eos.local.process import Guard, Identity, spawn
from eos.local.state import SparkState

TOKEN = "EOS_LOCAL_SPARK"  # noqa: S105 - the name of a variable
CORES_PER_WORKER = 1

_ANSWER_TIMEOUT_S = 2.0
_ALIVE = "ALIVE"
# Master and worker move messages only; the work is done by the executors, which are Java machines of their own.
_DAEMON_OPTIONS = (
    "-XX:TieredStopAtLevel=1",  # for a quick start, as the next one
    "-XX:+UseSerialGC",
    "-Dspark.port.maxRetries=0",  # else a master whose port is taken moves to the next one
    "-Dspark.master.rest.enabled=false",  # a second door, at a port of its own
)


class SparkLaunch:
    """One start: each method starts a process and waits until it has arrived."""

    def __init__(self, layout: SparkLayout, home: Path, state: SparkState, *, owned: bool) -> None:
        self._layout = layout
        self._spark_class = str(home / "bin" / "spark-class")
        self._state = state
        self._owned = owned
        self._environment = _environment(os.environ, layout, home, state.token)
        self.guards: list[Guard] = []

    def start_master(self) -> Identity:
        """Start the master's process."""
        arguments = ["--host", HOST, "--port", str(self._state.port)]
        arguments += ["--webui-port", str(self._state.web_port)]
        return self._spawn("org.apache.spark.deploy.master.Master", arguments, self._layout.master_log)

    def start_worker(self, number: int, memory_mb: int) -> Identity:
        """Start a worker's process. Its own ports are the system's choice: the master learns them from it."""
        directory = self._layout.worker(number)
        directory.mkdir()
        arguments = ["--host", HOST, "--port", "0", "--webui-port", "0", "--work-dir", str(directory)]
        arguments += ["--cores", str(CORES_PER_WORKER), "--memory", f"{memory_mb}m", self._state.master_url]
        return self._spawn(
            "org.apache.spark.deploy.worker.Worker", arguments, self._layout.worker_log(number)
        )

    def wait_for_master(self, master: Identity, deadline: Deadline) -> None:
        """Wait until it takes workers: one that registers earlier is turned away, and waits 8 s (measured).

        Raises:
            PortTakenError: it ended because one of its ports is occupied.
            ConfigError: it ended. The message shows its last log lines.
            RetriableError: the deadline passed. The message shows its last log lines.
        """

        def ready() -> bool:
            _check_alive(master, "the master", self._layout.master_log)
            return bool(ask_master(self._state.web_port).get("status") == _ALIVE)

        if not deadline.wait_for(ready):
            raise RetriableError(
                f"the master of local Spark was not ready in time. {last_lines(self._layout.master_log)}"
            )

    def wait_for_workers(self, workers: Mapping[int, Identity], deadline: Deadline) -> None:
        """Wait until the master counts all of them.

        Raises:
            ConfigError: one ended. The message shows its last log lines.
            RetriableError: the deadline passed. The message shows the last log lines of one.
        """

        def ready() -> bool:
            for number, worker in workers.items():
                _check_alive(worker, f"worker {number}", self._layout.worker_log(number))
            known = ask_master(self._state.web_port).get("workers", [])
            return len([worker for worker in known if worker.get("state") == _ALIVE]) == len(workers)

        if not deadline.wait_for(ready):
            raise RetriableError(
                f"not all workers of local Spark were ready in time. {last_lines(self._layout.worker_log(1))}"
            )

    def _spawn(self, main_class: str, arguments: list[str], log: Path) -> Identity:
        # spark-class finds out Spark's own Java options, and becomes that Java by exec: the id stays.
        identity, guard = spawn(
            [self._spark_class, main_class, *arguments],
            directory=self._layout.run,
            output=log,
            owned=self._owned,
            environment=self._environment,
        )
        self.guards.append(guard)
        return identity


def _check_alive(process: Identity, which: str, log: Path) -> None:
    if not process.alive:
        raise ended(f"{which} of local Spark", last_lines(log))


def ask_master(web_port: int) -> dict[str, Any]:
    """What the master answers about itself and its workers; empty if it does not answer."""
    connection = http.client.HTTPConnection(HOST, web_port, timeout=_ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", "/json/")
        answer = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        connection.close()
    return answer if isinstance(answer, dict) else {}


def _environment(outer: Mapping[str, str], layout: SparkLayout, home: Path, token: str) -> dict[str, str]:
    """The environment of master and workers, and so of executors and their Python processes."""
    # Settings of another Spark do not reach this one. Nor does PYTHONPATH: on a real cluster, executors do not
    # see what the driver's shell sees either.
    kept = {
        name: value
        for name, value in outer.items()
        if not name.startswith(("SPARK_", "PYSPARK_")) and name != "PYTHONPATH"
    }
    return kept | {
        TOKEN: token,
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(layout.run / "conf"),
        "SPARK_LOCAL_IP": HOST,  # what the web pages bind to
        "SPARK_LOCAL_DIRS": str(layout.run / "scratch"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": " ".join(_DAEMON_OPTIONS),
        # An executor runs the Python that the driver names. If it names none, that is "python3".
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)]),
    }

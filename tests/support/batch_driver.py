"""A batch run of its own driver process, started by ``spark-submit`` of the installed PySpark."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.patience import PATIENCE_S
from tests.support.processes import Child, running

_REPOSITORY = Path(__file__).parents[2]
_SUBMIT = _REPOSITORY / "tests" / "support" / "spark_submit.py"
_CHILD = _REPOSITORY / "tests" / "support" / "batch_child.py"
_OPTIONS = ("--driver-memory", "512m", "--executor-memory", "512m")
_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.pyspark.python": sys.executable,
    "spark.sql.session.timeZone": "UTC",
}


@contextlib.contextmanager
def submitted(
    master: str,
    jars: Sequence[Path],
    *,
    conf: Mapping[str, str] | None = None,
    settings: Mapping[str, Any],
    **arguments: Any,
) -> Iterator[Child]:
    """A driver that runs :func:`tests.support.batch_child.run` with these arguments.

    Args:
        master: of Spark.
        jars: of its Kafka connector.
        conf: Spark settings beside the usual ones.
        settings: of eos, by their dotted names.
        **arguments: the others of the run.
    """
    options = ["--master", master, "--jars", ",".join(map(str, jars)), *_OPTIONS]
    for key, value in (_CONF | dict(conf or {})).items():
        options += ["--conf", f"{key}={value}"]
    environment = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    given = json.dumps({"settings": dict(settings), **arguments})
    with running(_SUBMIT, *options, str(_CHILD), given, env=environment, cwd=_REPOSITORY) as child:
        yield child


def kill_driver(child: Child) -> None:
    """SIGKILL to the driver's Python and Java at once, and wait until they are gone."""
    os.killpg(child.pid, signal.SIGKILL)
    child.wait(PATIENCE_S)

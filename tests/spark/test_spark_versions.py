"""Every tested version of Spark but the locked one: a batch and a stream are exact there too."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.ci_scripts import script_of_ci

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from eos.exits import ExitCode
from eos.local.versions import SPARK_VERSIONS
from tests.conftest import NewTopic
from tests.support import observer
from tests.support.observer import PlainRecord
from tests.support.processes import running

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1800)]

_REPOSITORY = Path(__file__).parents[2]
_JOBS = "tests.support.jobs_for_spark_cli"
_COMMAND = "import sys\nfrom eos.cli import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
_INSTALL_S = 900  # PySpark's source has 440 MB, and a wheel is built of it the first time
_END_S = 180.0
_PARTITIONS = 3


@pytest.fixture(scope="module", params=SPARK_VERSIONS[:-1])
def spark_version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def python(spark_version: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment: what the lock holds for eos with Spark, but this PySpark."""
    pytest.importorskip("uv", reason="uv is not installed")
    room = tmp_path_factory.mktemp("spark-version")
    lock = script_of_ci("clean_install").runtime_lock(
        (_REPOSITORY / "requirements.lock").read_text(), "eos-kafka", "spark"
    )
    entries = re.split(r"^(?=\S)", lock, flags=re.MULTILINE)
    others = [entry for entry in entries if entry.partition("==")[0] not in ("pyspark", "py4j")]
    assert len(others) == len(entries) - 2
    (room / "others.lock").write_text("".join(others))
    interpreter = room / "venv/bin/python"
    install = ("pip", "install", "--python", str(interpreter))
    for command in (
        ("venv", "--python", sys.executable, str(room / "venv")),
        (*install, "--require-hashes", "-r", str(room / "others.lock")),
        (*install, f"pyspark=={spark_version}"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "uv", *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=_INSTALL_S,
        )
        assert done.returncode == 0, done.stderr
    return interpreter


@pytest.fixture
def source(bootstrap: str, topic: NewTopic) -> str:
    name = topic("spark-version", _PARTITIONS)
    observer.create_topics(bootstrap, {f"{name}.copies": 2})
    return name


def _eos_spark(python: Path, bootstrap: str, source: str, directory: Path, *arguments: str) -> str:
    """What the command has printed, after it has ended well."""
    script = directory / "eos-script.py"
    script.write_text(_COMMAND)
    env = {
        "TEST_INPUT": source,
        "EOS_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
        "EOS_GROUP": source,
        "EOS_LOCAL__JARS": str(_REPOSITORY / ".eos" / "jars"),
    }
    with running(script, "spark", *arguments, env=env, python=python) as child:
        assert child.wait(_END_S) == ExitCode.DONE, "\n".join(child.lines)
        return "\n".join(child.lines)


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_runs_on_an_older_spark_go_on_where_the_last_one_ended_and_are_exact(
    kind: str, spark_version: str, python: Path, bootstrap: str, source: str, tmp_path: Path
) -> None:
    job = ["copying"] if kind == "batch" else ["streaming", "--checkpoint", str(tmp_path / "checkpoint")]
    command = ["run", f"{_JOBS}:{job[0]}", *job[1:], "--start", "earliest", "--until-caught-up"]
    command += ["--master", "local[2,4]", "--conf", "spark.driver.memory=1g"]
    for first in (0, 300):
        records = [PlainRecord(b"v%d" % i, b"k%d" % i, i % _PARTITIONS) for i in range(first, first + 300)]
        observer.produce_plain(bootstrap, source, records)
        shown = _eos_spark(python, bootstrap, source, tmp_path, *command)
        assert "is not tested" not in shown
        if kind == "stream" and not first:  # Spark 4.0 can write in no other way than behind a shuffle
            assert ('"in_place": true' in shown) is not spark_version.startswith("4.0."), shown

    jars = _eos_spark(python, bootstrap, source, tmp_path, "jars")
    assert f"spark-sql-kafka-0-10_2.13-{spark_version}.jar" in jars
    if kind == "batch":
        copied = (f"{source}.copies",)
        outcome = observer.assert_exactly_once(
            bootstrap, source, [source], copied, lambda r: [(copied[0], r.key, r.value)]
        )
        assert outcome.processed == 600
    else:  # a query's position is in its checkpoint, not in the group
        wanted, found = (
            Counter((record.key, record.value) for record in observer.read_committed(bootstrap, name))
            for name in (source, f"{source}.copies")
        )
        assert found == wanted
        assert wanted.total() == 600

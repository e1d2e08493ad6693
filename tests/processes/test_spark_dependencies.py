"""How code reaches executors: what docs/guides/spark-dependencies.md tells to do, done on a standalone cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from eos.local import LocalSpark
from eos.local.pyspark_home import find_pyspark
from tests.support.ci_scripts import script_of_ci
from tests.support.documents import blocks

_REPOSITORY = Path(__file__).parents[2]
_BIN = Path(sys.executable).parent
_LIMIT_S = 300

pytestmark = [
    pytest.mark.slow,  # 250 MB are installed, packed, sent and unpacked
    pytest.mark.timeout(3 * _LIMIT_S),
    pytest.mark.skipif(find_pyspark() is None, reason="PySpark is not installed: eos-kafka[spark]"),
]

_JOB = """
import pyarrow
from pyspark.sql import SparkSession

def look(batches):
    import sys
    from pathlib import Path
    import confluent_kafka, eos
    from jobs import refund_rules
    confluent_kafka.Producer({"bootstrap.servers": "127.0.0.1:1"}).purge()  # its compiled part is loaded
    places = [confluent_kafka.__file__, eos.__file__]
    inside = all(Path(place).is_relative_to(sys.prefix) for place in places)
    for _ in batches:
        facts = [f"prefix={Path(sys.prefix).name} inside={inside} jobs={Path(refund_rules.__file__).parts[-3]}"]
        yield pyarrow.RecordBatch.from_pydict({"fact": facts})

spark = SparkSession.builder.getOrCreate()
for fact, in spark.range(2, numPartitions=2).mapInArrow(look, "fact string").collect():
    print("SEEN", fact)
"""


def _run(*command: str | Path, cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the locked dependencies and eos's wheel, as one archive."""
    room = tmp_path_factory.mktemp("environment")
    _run(sys.executable, "-m", "venv", "env", cwd=room)
    lock = (_REPOSITORY / "requirements.lock").read_text()
    (pyarrow,) = re.findall(r"^pyarrow==(?:.*\\\n)*.*\n", lock, flags=re.MULTILINE)
    (room / "lock").write_text(script_of_ci("clean_install").runtime_lock(lock, "eos-kafka") + pyarrow)
    pip = (room / "env/bin/python", "-m", "pip", "install", "--quiet")
    _run(*pip, "--require-hashes", "-r", "lock", cwd=room)
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", room, _REPOSITORY, cwd=room)
    _run(*pip, "--no-deps", *room.glob("*.whl"), cwd=room)
    archive = room / "environment.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(room / "env", arcname=".")
    return archive


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """The jobs, without anything that they import."""
    with ZipFile(tmp_path / "jobs.zip", "w") as archive:
        for path in sorted((_REPOSITORY / "jobs").glob("*.py")):
            archive.write(path, path.relative_to(_REPOSITORY))
    return tmp_path / "jobs.zip"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSpark]:
    with LocalSpark(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


def test_tasks_run_in_the_packed_environment_with_the_jobs_beside_it(
    spark: LocalSpark, environment: Path, jobs: Path, tmp_path: Path
) -> None:
    """eos and the compiled client come from the archive, the job's code from the zip file."""
    shown = _submit(spark, environment, jobs, tmp_path, _JOB)
    seen = [line for line in shown.splitlines() if line.startswith("SEEN")]
    assert seen == ["SEEN prefix=environment inside=True jobs=jobs.zip"] * 2


def test_the_script_of_the_documentation_names_the_places(
    spark: LocalSpark, environment: Path, jobs: Path, tmp_path: Path
) -> None:
    shown = _submit(
        spark,
        environment,
        jobs,
        tmp_path,
        blocks("docs/guides/spark-dependencies.md")["A packed environment"],
    )
    assert re.search(r"/environment/lib/\S+/confluent_kafka/__init__\.py$", shown, re.MULTILINE)
    assert re.search(r"/environment/lib/\S+/eos/__init__\.py$", shown, re.MULTILINE)
    assert re.search(r"/jobs\.zip/jobs/refund_rules\.py$", shown, re.MULTILINE)


def _submit(spark: LocalSpark, environment: Path, jobs: Path, directory: Path, code: str) -> str:
    (directory / "job.py").write_text(code)
    return _run(
        _BIN / "spark-submit",
        *("--master", spark.master_url),
        *("--archives", f"{environment}#environment"),
        *("--py-files", jobs),
        *("--conf", "spark.pyspark.python=./environment/bin/python"),
        *("--conf", f"spark.pyspark.driver.python={sys.executable}"),
        "job.py",
        cwd=directory,
        PATH=os.pathsep.join([str(_BIN), os.environ["PATH"]]),
        SPARK_LOCAL_IP="127.0.0.1",
    )

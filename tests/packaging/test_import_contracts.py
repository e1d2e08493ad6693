"""The import contracts hold, and each of them would fail if it were broken."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]
CONTRACTS = configparser.ConfigParser()
CONTRACTS.read(REPOSITORY / ".importlinter")

# contract -> (module, the line planted in it)
PLANTED = {
    "layers": ("eos/records.py", "import eos.core.owner"),
    "no-facade": ("eos/runner/loop.py", "from eos import Job"),
    "no-cycles": ("eos/local/layout.py", "import eos.local.cluster"),
    "checking-shares-nothing": ("eos/ops/verifier/comparison.py", "import eos.core.transaction"),
    "one-commit-path": ("eos/core/owner.py", "import eos.crashes.search"),
    "rooms-of-spark": ("eos/spark/session/thrown.py", "import eos.spark.analysis.lineage"),
    "writer-knows-no-record": ("eos/spark/write/writer.py", "import eos.spark.stream.micro_batch"),
    "batch-and-stream": ("eos/spark/stream/micro_batch.py", "import eos.spark.batch.batch"),
    "rules-are-pure": ("jobs/refund_rules.py", "import eos.records"),
    "library-knows-no-job": ("eos/runner/worker.py", "import jobs.refunds"),
    "door-confluent-kafka": ("eos/core/owner.py", "import confluent_kafka.admin"),
    "door-tenacity": ("eos/core/producer.py", "import tenacity"),
    "door-pydantic-settings": ("eos/job.py", "import pydantic_settings"),
    "door-prometheus-client": ("eos/runner/loop.py", "from prometheus_client import Counter"),
    "door-opentelemetry": ("eos/ops/observe/telemetry.py", "from opentelemetry import trace"),
    "door-matplotlib": ("eos/prove/nemesis.py", "import matplotlib.figure"),
    "door-py4j": ("eos/local/ports.py", "import py4j.java_gateway"),
    "door-typer": ("eos/local/cluster.py", "import typer"),
    "door-rich": ("eos/local/jars.py", "import rich.progress"),
    "door-kafka-python": ("eos/ops/verifier/verify.py", "from kafka import KafkaConsumer"),
    "door-psutil": ("eos/runner/worker.py", "import psutil"),
    "door-filelock": ("eos/local/jars.py", "from filelock import FileLock"),
    "door-pyspark": ("eos/local/download.py", "import pyspark"),
    "door-pyarrow": ("eos/core/producer.py", "import pyarrow"),
    "door-sqlalchemy": ("eos/core/owner.py", "from sqlalchemy import text"),
    "door-psycopg": ("eos/local/ports.py", "import psycopg"),
    "door-testcontainers": ("eos/local/cluster.py", "import testcontainers.core"),
    "door-docker": ("eos/local/ports.py", "import docker"),
    "door-pytest": ("eos/testing/cluster.py", "import pytest"),
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What the contracts are about, to be damaged."""
    for package in ("eos", "eos_pytest", "jobs"):
        shutil.copytree(
            REPOSITORY / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(REPOSITORY / ".importlinter", tmp_path)
    return tmp_path


def check(tree: Path) -> tuple[int, str]:
    """The exit code and the output of import-linter in a tree of its own."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"],
        capture_output=True,
        check=False,
        cwd=tree,
        text=True,
        timeout=PATIENCE_S,
    )
    return done.returncode, re.sub(r"\s+", " ", done.stdout + done.stderr)  # long names are wrapped


def test_the_contracts_hold() -> None:
    code, output = check(REPOSITORY)
    assert code == 0, output


def test_every_contract_breaks_when_an_import_against_it_is_planted(copy: Path) -> None:
    for module, line in PLANTED.values():
        path = copy / module
        path.write_text(f"{path.read_text()}\n{line}\n")

    code, output = check(copy)

    assert code == 1
    for contract in PLANTED:
        name = CONTRACTS[f"importlinter:contract:{contract}"]["name"]
        assert f"{name} BROKEN" in output


def test_every_contract_has_its_planted_import() -> None:
    marked = {
        section.rpartition(":")[2] for section in CONTRACTS if section.startswith("importlinter:contract:")
    }
    assert set(PLANTED) == marked


def test_a_module_that_nobody_has_placed_in_a_layer_fails(copy: Path) -> None:
    (copy / "eos/misplaced.py").touch()
    code, output = check(copy)
    assert code == 1
    assert "misplaced" in output

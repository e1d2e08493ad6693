"""The import contracts hold, and each of them would fail if it were broken."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
CONTRACTS = configparser.ConfigParser()
CONTRACTS.read(REPOSITORY / ".importlinter")

# contract -> (module, the line planted in it)
PLANTED = {
    "layers": ("eos/records.py", "import eos.session.session"),
    "no-facade": ("eos/runner/loop.py", "from eos import Job"),
    "no-cycles": ("eos/local/layout.py", "import eos.local.cluster"),
    "checking-shares-nothing": ("eos/verifier/comparison.py", "import eos.producer.transaction"),
    "writer-knows-no-record": ("eos/spark/writer.py", "import eos.spark.done_entry"),
    "batch-and-stream": ("eos/spark/stream_write.py", "import eos.spark.batch"),
    "rules-are-pure": ("jobs/refund_rules.py", "import eos.records"),
    "library-knows-no-job": ("eos/runner/worker.py", "import jobs.refunds"),
    "door-confluent-kafka": ("eos/session/session.py", "import confluent_kafka.admin"),
    "door-tenacity": ("eos/producer/producer.py", "import tenacity"),
    "door-pydantic-settings": ("eos/job.py", "import pydantic_settings"),
    "door-structlog": ("eos/runner/loop.py", "import structlog"),
    "door-prometheus-client": ("eos/runner/loop.py", "from prometheus_client import Counter"),
    "door-opentelemetry": ("eos/observe/telemetry.py", "from opentelemetry import trace"),
    "door-typer": ("eos/local/cluster.py", "import typer"),
    "door-rich": ("eos/local/jars.py", "import rich.progress"),
    "door-kafka-python": ("eos/verifier/verify.py", "from kafka import KafkaConsumer"),
    "door-psutil": ("eos/runner/worker.py", "import psutil"),
    "door-filelock": ("eos/local/jars.py", "from filelock import FileLock"),
    "door-pyspark": ("eos/local/download.py", "import pyspark"),
    "door-pyarrow": ("eos/producer/producer.py", "import pyarrow"),
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
        timeout=60,
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

"""The tags of the images: `make images` writes them, tests and compose files read them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.docker_cli import APP_IMAGE, KAFKA_IMAGE, SPARK_IMAGE
from tests.support.patience import PATIENCE_S

_REPOSITORY = Path(__file__).parents[2]


def test_tests_ask_for_the_images_that_are_built() -> None:
    done = subprocess.run(
        [sys.executable, _REPOSITORY / "docker" / "images.py", "--tag", "kafka", "app", "spark"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout.split() == [KAFKA_IMAGE, APP_IMAGE, SPARK_IMAGE]

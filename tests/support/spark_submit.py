"""Become `spark-submit` of the installed PySpark, with the arguments given."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark

if __name__ == "__main__":
    home = Path(pyspark.__file__).parent
    os.environ.setdefault("PYTHONPATH", str(Path.cwd()))
    submit = str(home / "bin" / "spark-submit")
    os.execv(submit, [submit, *sys.argv[1:]])  # noqa: S606 - no shell is wanted

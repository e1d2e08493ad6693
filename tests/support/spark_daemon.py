"""The daemon that forks Spark's Python workers, with the imports of a task already made.

Each worker would make them by itself: a second of processor time, and tests in which tasks fail have hundreds of workers.
"""

from __future__ import annotations

from importlib import import_module

from pyspark.daemon import manager

for _name in ("pandas", "pyarrow.compute", "eos.spark.write.writer"):
    import_module(_name)

if __name__ == "__main__":
    manager()

"""eos with a batch function in two worker processes."""

from __future__ import annotations

import os

from bench.contenders.eos_batch import to
from bench.contenders.eos_loop import copy_with_workers
from eos import Job

job = Job(
    name="bench",
    inputs=[os.environ.get("BENCH_INPUT", "input")],
    outputs=[os.environ.get("BENCH_OUTPUT", "output")],
    transform_batch=to(os.environ.get("BENCH_OUTPUT", "output")),
)

if __name__ == "__main__":
    copy_with_workers("bench.contenders.eos_workers:job", workers=2)

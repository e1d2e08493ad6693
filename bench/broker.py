"""The broker that a benchmark runs on: one given by its address, or a fresh one on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import pauses
from eos.local import LocalKafka

HEAP_MB = 1024


@contextmanager
def broker(bootstrap: str | None, pauses_log: Path | None = None) -> Iterator[str]:
    """Yield bootstrap servers; a broker that was started here ends with the block, its data removed.

    ``pauses_log``: where such a broker writes its pauses, which :mod:`bench.pauses` reads.
    """
    if bootstrap is not None:
        yield bootstrap
        return

    home = Path(".eos")
    home.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=home) as directory:
        options = [] if pauses_log is None else [pauses.logged_to(pauses_log)]
        kafka = LocalKafka(
            Path(directory), jars=home / "jars", heap_mb=HEAP_MB, jvm_options=options, progress=print
        )
        kafka.start()
        try:
            yield kafka.bootstrap_servers
        finally:
            kafka.stop()

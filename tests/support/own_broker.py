"""A cluster of a test's own: with other settings than the shared broker, or one to break."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eos.local import QUICK_START, LocalKafka
from eos.local.jars import jars_root

JARS = jars_root(Path(__file__).parents[2] / ".eos", None)


def own_broker(directory: Path, brokers: int = 1, *, heap_mb: int = 512, **options: Any) -> LocalKafka:
    """One that starts quickly, with the jars that the whole run shares; ``options`` are those of `LocalKafka`."""
    return LocalKafka(directory, brokers, heap_mb=heap_mb, jars=JARS, jvm_options=QUICK_START, **options)

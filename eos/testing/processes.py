"""Kafka from local processes for the length of a test: LocalKafka in a directory that goes with it."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from eos.local import QUICK_START, LocalKafka
from eos.local.jars import jars_root
from eos.local.local_cluster import START_TIMEOUT_S

_APP_DIRECTORY = ".eos"  # where `eos local` keeps the jars, too


class ProcessKafka(LocalKafka):
    """LocalKafka whose records are gone after stop(); jars are kept in ``EOS_LOCAL__JARS``, else in ``.eos/jars``."""

    def __init__(
        self,
        brokers: int = 1,
        *,
        properties: Mapping[str, str] | None = None,
        heap_mb: int | None = None,
        jars: Path | str | None = None,
    ) -> None:
        self._directory = Path(tempfile.gettempdir(), f"eos-testing-{uuid.uuid4().hex}")
        super().__init__(
            self._directory,
            brokers,
            properties=properties,
            heap_mb=heap_mb,
            jars=jars_root(_APP_DIRECTORY, jars),
            jvm_options=QUICK_START,
        )

    def start(self, timeout_s: float = START_TIMEOUT_S) -> Self:
        """As LocalKafka's, in a directory that other users can't read."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return super().start(timeout_s)

    def stop(self, grace_s: float = 0.0) -> None:
        """End every broker and remove the directory. At once: its log is not read again."""
        super().stop(grace_s)
        shutil.rmtree(self._directory, ignore_errors=True)

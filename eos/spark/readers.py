"""kept_reader: clients that read a group's offsets, kept for the other tasks of a Python worker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from eos.kafka.consumer import ConsumerClient, offsets_reader
from eos.settings import Settings


@contextmanager
def kept_reader(settings: Settings, group: str, *, stable: bool) -> Iterator[ConsumerClient]:
    """The worker's client for a group; the next task gets the same one, unless something went wrong with it.

    A client of its own took a task 20 to 60 ms. Readers of two groups are not kept beside each other.
    """
    try:
        yield _kept(os.getpid(), group, stable, tuple(sorted(settings.client_config().items())))
    except BaseException:
        _kept.cache_clear()
        raise


@lru_cache(maxsize=2)  # of one group: stable and not
def _kept(pid: int, group: str, stable: bool, config: tuple[tuple[str, Any], ...]) -> ConsumerClient:
    del pid  # a client does not survive a fork
    return offsets_reader(dict(config), group, stable=stable)

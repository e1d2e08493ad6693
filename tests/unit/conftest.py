"""What unit tests share: the process's logging is as it was, whatever a test configured."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    loggers = [logging.getLogger(), logging.getLogger("eos")]
    before = [(logger.level, list(logger.handlers), logger.disabled) for logger in loggers]
    yield
    for logger, (level, handlers, disabled) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers
        logger.disabled = disabled
    structlog.reset_defaults()

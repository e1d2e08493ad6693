"""One secured broker for the tests of this folder, and a job on it with a user of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import OPENSSL
from tests.support.secured_broker import SecuredBroker, secured_broker

_REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """One secured broker, started once per run."""
    if OPENSSL is None:
        pytest.skip("certificates are made by openssl, which is not on the PATH")
    kept = None if "EOS_LOCAL__JARS" in os.environ else _REPOSITORY / ".eos" / "jars"
    with secured_broker(tmp_path_factory.mktemp("secured"), jars=kept) as broker:
        yield broker

"""A librdkafka that is known to lose or double records is refused by name."""

from __future__ import annotations

import pytest

from eos.errors import ConfigError
from eos.kafka.librdkafka import librdkafka_version, refuse_known_bad


@pytest.mark.parametrize(
    ("version", "fault"),
    [
        ("1.8.1", "leaders change"),
        ("1.8.2", "reported them delivered"),
        ("1.9.2", "go on with a commit"),
        ("2.2.0", "over records"),
        ("2.13.1-RC1", "over records"),
    ],
)
def test_version_that_breaks_exactly_once_is_refused_with_its_fault(version: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=rf"librdkafka {version} .*{fault}.*Fix: pip install"):
        refuse_known_bad(version)


@pytest.mark.parametrize("version", ["2.0.0", "2.1.1", "2.13.2", "2.16.0", "3", librdkafka_version()])
def test_version_without_a_known_fault_passes(version: str) -> None:
    refuse_known_bad(version)

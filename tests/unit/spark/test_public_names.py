"""The public names of eos.spark: each has one home."""

from __future__ import annotations

import re

import pytest

from tests.support.documents import REPOSITORY

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import eos.spark


def test_every_public_name_is_there() -> None:
    for name in eos.spark.__all__:
        assert getattr(eos.spark, name).__name__ == name
    assert sorted(eos.spark.__all__) == sorted(eos.spark._HOMES)


def test_every_public_name_has_a_row_in_the_documentation() -> None:
    page = (REPOSITORY / "docs/reference/spark-names.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted(eos.spark.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        eos.spark.nothing_like_it  # noqa: B018 - asking is the test

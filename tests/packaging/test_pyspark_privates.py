"""What PySpark keeps private may change in any release: eos touches it in one room, eos/spark/session."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SPARK = Path(__file__).parents[2] / "eos/spark"
OWN = {"self", "cls"}


def privates_in(source: str) -> Iterator[str]:
    """Attributes that begin with an underscore, of anything but an object of the class itself; also by their name as a text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in OWN):
                yield node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"getattr", "hasattr", "setattr"}:
            yield from (
                str(one.value)
                for one in node.args[1:2]
                if isinstance(one, ast.Constant) and _is_private(one.value)
            )


def _is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize("module", sorted(str(path.relative_to(SPARK)) for path in SPARK.rglob("*.py")))
def test_only_the_session_room_touches_what_pyspark_keeps_private(module: str) -> None:
    found = list(privates_in((SPARK / module).read_text()))
    assert not found or module.startswith("session/"), found


@pytest.mark.parametrize(
    "line", ["frame._jdf.x()", "spark.sparkContext._jvm", "getattr(error, '_origin', None)"]
)
def test_a_private_attribute_is_seen(line: str) -> None:
    assert list(privates_in(line))


def test_the_session_room_is_looked_at_too() -> None:
    assert "_jdf" in set(privates_in((SPARK / "session/jvm.py").read_text()))

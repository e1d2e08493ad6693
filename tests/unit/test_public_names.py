"""The public surface: what ``import eos`` offers, no more, each with a docstring, and cheap to import."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from types import ModuleType
from typing import get_args

import eos

IMPORT_LIMIT_S = 1.0
HEAVY = {"pyspark", "pandas", "pyarrow", "kafka", "typer", "structlog", "prometheus_client", "py4j"}


def test_all_is_sorted_and_names_nothing_twice() -> None:
    assert eos.__all__ == sorted(set(eos.__all__))


def test_all_is_exactly_what_can_be_imported() -> None:
    """Submodules become attributes once they are imported; every other public attribute must be meant."""
    assert all(hasattr(eos, name) for name in eos.__all__)
    public = {
        name
        for name, value in vars(eos).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public == set(eos.__all__)


def test_a_public_class_or_function_has_a_docstring() -> None:
    for name in eos.__all__:
        public = getattr(eos, name)
        if inspect.isclass(public) or inspect.isfunction(public):
            # __dict__, not inspect.getdoc: a base class's docstring says nothing of this one.
            assert (public.__doc__ or "").strip(), name
            assert not (public.__doc__ or "").startswith(f"{name}("), "made by the machine"


def test_a_public_name_lives_inside_the_library() -> None:
    """A name of another package would make that package's releases a part of our contract."""
    for name in eos.__all__:
        public = getattr(eos, name)
        for part in get_args(public) or (public,):  # a union lives nowhere, its parts do
            assert part.__module__.partition(".")[0] == "eos", name


def test_import_needs_neither_java_nor_optional_nor_heavy_packages_and_is_quick() -> None:
    """Seconds of processor time, the best of three: a busy machine must not fail it."""
    code = (
        "import sys, time; from eos import *; "
        "print(time.process_time(), *{name.partition('.')[0] for name in sys.modules})"
    )
    without_java = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {"PATH": ""}
    took_s: list[float] = []
    while not took_s or (len(took_s) < 3 and min(took_s) >= IMPORT_LIMIT_S):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            capture_output=True,
            check=True,
            env=without_java,
            text=True,
            timeout=60,
        )
        took, *modules = done.stdout.split()
        took_s.append(float(took))
        assert not HEAVY & set(modules)
    assert min(took_s) < IMPORT_LIMIT_S

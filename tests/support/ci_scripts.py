"""A script of .ci as a module: they stand beside the packages, and are imported by no name."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

CI = Path(__file__).parents[2] / ".ci"


def script_of_ci(name: str) -> ModuleType:
    """The script of that name."""
    specification = importlib.util.spec_from_file_location(name, CI / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module

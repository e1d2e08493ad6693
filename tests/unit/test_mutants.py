"""The list of mutations fits the code, and its page fits the list."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.catalogue import MUTATIONS
from tests.mutants.mutation import Mutation
from tests.mutants.page import page
from tests.support.documents import REPOSITORY


def names_in(file: Path) -> set[str]:
    """What a module binds by def, class or assignment."""
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return found


@pytest.mark.parametrize("one", MUTATIONS, ids=lambda one: one.name)
def test_mutation_fits_the_code(one: Mutation) -> None:
    """A change of the text of a rule changes its mutation, too; so does a new name of a test."""
    text = (REPOSITORY / one.file).read_text()
    assert not one.is_stale(text)
    compile(one.applied(text), one.file, "exec")
    for test in one.tests:
        file, name = test.split("::")[:2]
        assert name in names_in(REPOSITORY / file)


def test_no_two_mutations_have_one_name() -> None:
    assert max(Counter(one.name for one in MUTATIONS).values()) == 1


def test_page_is_that_of_the_list() -> None:
    """Else: .venv/bin/python -m tests.mutants --page."""
    assert (REPOSITORY / "docs/MUTANTS.md").read_text() == page(MUTATIONS)

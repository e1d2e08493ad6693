"""Page: the list of mutations as docs/MUTANTS.md."""

from __future__ import annotations

from collections.abc import Iterable

from tests.mutants.mutation import Mutation

_HEAD = """\
# Mutants

Rules of the guarantee, each broken on purpose in a copy of the code, and the tests that notice. `make mutants` breaks them one by one
and runs the named tests; it ends with an error if one of them stays green, if a test is not green without the mutation, or if the
code has changed so that a mutation cannot be made any more. `.venv/bin/python -m tests.mutants NAME` tries some of them.

This page is written by `.venv/bin/python -m tests.mutants --page`; the list is in `tests/mutants`. What is promised:
[Guarantees](GUARANTEES.md).

| the rule that is broken | name | module | turns red |
|---|---|---|---|
"""


def page(mutations: Iterable[Mutation]) -> str:
    """The document."""
    return _HEAD + "".join(
        f"| {one.rule} | {one.name} | {one.file} | {', '.join(test.removeprefix('tests/') for test in one.tests)} |\n"
        for one in mutations
    )

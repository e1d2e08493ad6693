"""The error tree: what it looks like, and that an error survives the way between processes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from eos import errors
from eos.errors import (
    AbortableError,
    AbortTransaction,
    CommitOutcomeUnknownError,
    EosError,
    ProcessDiedError,
    RebalancedError,
    ReopenError,
    TransactionExpiredError,
    TransformError,
)


def public_children(kind: type[EosError]) -> list[type[EosError]]:
    """A module may have a class of its own for inside; the tree is what this package raises."""
    return [child for child in kind.__subclasses__() if child.__module__ == EosError.__module__]


def tree(kind: type[EosError] = EosError) -> list[type[EosError]]:
    return [kind, *(found for child in public_children(kind) for found in tree(child))]


def made(kind: type[EosError]) -> EosError:
    if issubclass(kind, TransformError):
        return kind("no", topic="in", partition=3, offset=7)
    return kind("no", code="_FENCED")


@pytest.mark.parametrize("kind", tree())
@pytest.mark.parametrize("sent", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])  # noqa: S301 - our own bytes
def test_error_that_crosses_a_process_border_keeps_all_it_says(
    kind: type[EosError], sent: Callable[[EosError], EosError]
) -> None:
    error = made(kind)
    error.add_note("the abort that followed failed too")
    arrived = sent(error)
    assert type(arrived) is kind
    assert str(arrived) == "no"
    assert arrived.__dict__ == error.__dict__


def test_code_is_none_where_kafka_was_not_asked() -> None:
    assert EosError("no").code is None


def test_drawn_tree_names_every_class() -> None:
    drawn = errors.__doc__ or ""
    assert [kind.__name__ for kind in tree() if kind.__name__ not in drawn] == []


@pytest.mark.parametrize(
    ("kind", "parent"),
    [
        (RebalancedError, AbortableError),
        (ProcessDiedError, TransformError),
        (TransactionExpiredError, ReopenError),
        (CommitOutcomeUnknownError, ReopenError),
    ],
)
def test_who_handles_the_parent_handles_the_child(kind: type[EosError], parent: type[EosError]) -> None:
    assert issubclass(kind, parent)


def test_what_the_holder_must_do_is_never_two_things() -> None:
    """Abort, reopen and stop exclude one another, so no class may be under two of them."""
    branches = public_children(EosError)
    for kind in tree():
        if kind is not EosError:
            assert sum(issubclass(kind, branch) for branch in branches) == 1


def test_quiet_abort_is_no_error_of_eos() -> None:
    """``except EosError`` around a block must not see the caller's own signal."""
    assert not issubclass(AbortTransaction, EosError)


@pytest.mark.parametrize("kind", tree())
def test_each_class_says_what_it_means(kind: type[EosError]) -> None:
    assert (kind.__doc__ or "").strip()

"""The public surface: what ``import eos`` offers, no more, each with a docstring, and cheap to import."""

from __future__ import annotations

import inspect
from typing import get_args

import pytest

import eos


def test_all_is_sorted_and_names_nothing_twice() -> None:
    assert eos.__all__ == sorted(set(eos.__all__))


def test_all_is_exactly_what_can_be_imported() -> None:
    """The names are imported when they are asked for; the module has nothing else that is ours."""
    assert all(hasattr(eos, name) for name in eos.__all__)
    assert sorted(eos._HOMES) == sorted(eos.__all__)
    beside = {name for name in vars(eos) if not name.startswith("_")} - set(eos.__all__)
    of_eos = {name for name in beside if getattr(vars(eos)[name], "__module__", "").startswith("eos")}
    assert not of_eos


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        eos.nothing_like_it  # noqa: B018 - asking is the test


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

"""The mutation run: only a named test that fails kills a mutation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.mutants import __main__ as command
from tests.mutants.mutation import Mutation
from tests.mutants.trial import Judged, Verdict, copied, judge

DOUBLE = "def double(number):\n    return 2 * number\n"
TEST = "from eos.double import double\n\n\ndef test_of_two():\n    assert double(2) == 4\n"
OF_TWO = "tests/test_double.py::test_of_two"


@pytest.fixture(autouse=True)
def _pytest_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """These trees need no plugin, and most of a run's time goes into them."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr("tests.mutants.trial._IN_THEIR_ORDER", ())


def tree(folder: Path, tests: Mapping[str, str] | None = None) -> Path:
    """A repository of one module and its tests."""
    files = {"eos/__init__.py": "", "eos/double.py": DOUBLE, "pyproject.toml": ""}
    files |= {f"tests/{name}": text for name, text in ({"test_double.py": TEST} | dict(tests or {})).items()}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


def mutation(
    new: str, *tests: str, old: str = "2 * number", file: str = "eos/double.py", name: str = "one"
) -> Mutation:
    return Mutation(name, "a number is doubled", file, old, new, tests or (OF_TWO,))


def test_mutation_that_a_named_test_fails_of_is_killed_and_the_tree_is_as_it_was(tmp_path: Path) -> None:
    repository = tree(tmp_path)
    assert judge(repository, mutation("3 * number")) == Judged(Verdict.KILLED)
    assert (repository / "eos/double.py").read_text() == DOUBLE
    assert {path.name for path in repository.iterdir()} == {"eos", "tests", "pyproject.toml"}


def test_mutation_that_a_named_test_stays_green_under_survives(tmp_path: Path) -> None:
    repository = tree(
        tmp_path, {"test_more.py": "from eos.double import double\n\ndef test_any():\n    assert double(2)\n"}
    )
    weak = "tests/test_more.py::test_any"
    assert judge(repository, mutation("number * number")).verdict is Verdict.SURVIVED
    judged = judge(repository, mutation("3 * number", OF_TWO, weak))
    assert judged == Judged(Verdict.SURVIVED, f"green: {weak}")


@pytest.mark.parametrize("old", ["4 * number", "number"])
def test_mutation_whose_old_text_does_not_stand_there_once_is_stale(tmp_path: Path, old: str) -> None:
    judged = judge(tree(tmp_path), mutation("3 * number", old=old))
    assert judged.verdict is Verdict.STALE
    assert "has the old text" in judged.why


def test_mutation_whose_new_text_uses_an_attribute_that_nothing_has_is_stale(tmp_path: Path) -> None:
    """It raises AttributeError, so any test of that line would turn red."""
    judged = judge(tree(tmp_path), mutation("2 * self.halved"))
    assert judged == Judged(Verdict.STALE, "the new text uses what eos/double.py does not have: halved")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "does not exist"),
        ("def test_of_two():\n    assert False\n", "is failed without the mutation"),
        ("import pytest\n\ndef test_of_two():\n    pytest.skip('not here')\n", "is skipped without"),
        ("def test_of_two(nothing_like_it):\n    pass\n", "is broken without the mutation"),
        ("import nothing_like_it\n" + TEST, "does not exist"),
    ],
    ids=["gone", "red", "skipped", "without its fixture", "not collected"],
)
def test_named_test_that_is_not_green_without_the_mutation_judges_none(
    tmp_path: Path, text: str, why: str
) -> None:
    judged = judge(tree(tmp_path, {"test_double.py": text}), mutation("3 * number"))
    assert judged.verdict is Verdict.STALE
    assert why in judged.why


@pytest.mark.parametrize(
    ("new", "why"),
    [
        ("2 *", "is no program"),
        ("twice * number", "is no program"),
        ("2 * __import__('nothing_like_it').x", "did not run"),
    ],
    ids=["syntax", "unbound name", "import inside"],
)
def test_mutation_that_is_no_program_is_not_killed_by_that(tmp_path: Path, new: str, why: str) -> None:
    judged = judge(tree(tmp_path), mutation(new))
    assert judged.verdict is Verdict.STALE
    assert why in judged.why


def test_mutation_that_fails_the_collection_or_a_fixture_is_not_killed_by_that(tmp_path: Path) -> None:
    fixture = (
        "import pytest\nfrom eos.double import double\n\n@pytest.fixture\ndef four():\n    assert double(2) == 4\n\n"
        "def test_of_four(four):\n    pass\n"
    )
    at_import = "from eos.double import double\n\nassert double(2) == 4\n\ndef test_late():\n    pass\n"
    repository = tree(tmp_path, {"test_fixture.py": fixture, "test_import.py": at_import})
    for test in ("tests/test_fixture.py::test_of_four", "tests/test_import.py::test_late"):
        judged = judge(repository, mutation("3 * number", test))
        assert judged.verdict is Verdict.STALE
        assert "did not run" in judged.why


def test_named_test_that_fails_and_whose_fixture_fails_behind_it_is_red(tmp_path: Path) -> None:
    checked = (
        "import pytest\nfrom eos.double import double\n\n@pytest.fixture\ndef checked():\n    yield\n    assert double(2) == 4\n\n"
        "def test_and_fixture(checked):\n    assert double(2) == 4\n\ndef test_before(checked):\n    assert double(2)\n"
    )
    repository = tree(tmp_path, {"test_checked.py": checked})
    red = judge(repository, mutation("3 * number", "tests/test_checked.py::test_and_fixture"))
    assert red.verdict is Verdict.KILLED
    assert (
        judge(repository, mutation("3 * number", "tests/test_checked.py::test_before")).verdict
        is Verdict.STALE
    )


def test_mutation_under_which_the_tests_never_end_is_given_up(tmp_path: Path) -> None:
    endless = "[0 for _ in iter(int, 1)] or number"
    judged = judge(tree(tmp_path), mutation(endless), {}, timeout_s=3.0)
    assert judged == Judged(Verdict.STALE, "no end within 3 s")


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        (("-p", "pytest_timeout", "--timeout", "5"), ""),
        (
            (),
            "from hypothesis import given, settings, strategies\n\n@settings(deadline=20)\n@given(strategies.just(2))\n",
        ),
    ],
    ids=["of the test", "of an example"],
)
def test_mutation_is_not_killed_by_a_limit_of_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], limits: str
) -> None:
    """A busy machine runs into it without the mutation, too: in the one run that counts, or in none of ten."""
    monkeypatch.setattr("tests.mutants.trial._IN_THEIR_ORDER", options)
    argument = "two" if limits else "two=2"
    late = (
        f"from eos.double import double\n{limits}def test_of_two({argument}):\n    assert double(two) == 4\n"
    )
    repository = tree(tmp_path, {"test_double.py": late})
    slow = mutation(f"__import__('time').sleep({'0.1' if limits else '30'}) or 2 * number")
    judged = judge(repository, slow)
    assert judged == Judged(
        Verdict.STALE, f"{OF_TWO} ran into a limit of time, which says nothing of the rule"
    )
    assert judge(repository, mutation("3 * number")) == Judged(Verdict.KILLED)


def test_one_parameter_that_fails_is_enough_and_a_class_of_tests_has_its_place(tmp_path: Path) -> None:
    many = (
        "import pytest\nfrom eos.double import double\n\n@pytest.mark.parametrize('n', [0, 2])\ndef test_many(n):\n"
        "    assert double(n) == n + n\n\nclass TestIt:\n    def test_in_it(self):\n        assert double(2) == 4\n"
    )
    repository = tree(tmp_path, {"test_more.py": many})
    tests = ("tests/test_more.py::test_many", "tests/test_more.py::TestIt::test_in_it")
    assert judge(repository, mutation("3 * number", *tests)).verdict is Verdict.KILLED


def test_run_says_what_became_of_each_and_ends_well_only_if_all_are_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = tree(tmp_path)
    killed, green = mutation("3 * number"), mutation("number * number", name="weak")
    assert command.run([killed], jobs=1, timeout_s=60.0, repository=repository) == 0
    assert "[1/1] killed   one" in capsys.readouterr().out
    assert command.run([killed, green], jobs=2, timeout_s=60.0, repository=repository) == 1
    said = capsys.readouterr().out
    assert "SURVIVED weak: green: tests/test_double.py::test_of_two" in said
    assert "1 SURVIVED" in said


def test_named_test_that_is_green_only_in_company_of_others_judges_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mutation's tests run by themselves: it would be red with any mutation, and without one."""
    both = (
        "from eos.double import double\n\nseen = []\n\ndef test_first():\n    seen.append(double(2))\n    assert seen == [4]\n\n"
        "def test_second():\n    assert seen\n"
    )
    repository = tree(tmp_path, {"test_both.py": both})
    first = mutation("3 * number", "tests/test_both.py::test_first", name="first")
    second = mutation("3 * number", "tests/test_both.py::test_second", name="second")
    assert command.run([first, second], jobs=1, timeout_s=60.0, repository=repository) == 1
    said = capsys.readouterr().out
    assert "killed   first" in said
    assert "STALE    second: tests/test_both.py::test_second is failed without the mutation" in said


def test_copy_has_what_the_tests_need(tmp_path: Path) -> None:
    (tmp_path / ".eos/jars").mkdir(parents=True)
    with copied(tree(tmp_path)) as one:
        assert (one / "eos/double.py").read_text() == DOUBLE
        assert (one / ".eos/jars").is_symlink()
    assert not one.exists()


def test_unknown_name_is_refused_and_the_list_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["no-such-rule"])
    assert "no mutation is called no-such-rule" in capsys.readouterr().err
    assert command.main(["--list", "no-member"]) == 0
    assert capsys.readouterr().out.startswith("no-member ")

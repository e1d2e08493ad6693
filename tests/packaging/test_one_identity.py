"""What kind of job one has, and its names on the cluster, say its identity alone: no class is guessed, no group derived beside it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

EOS = Path(__file__).parents[2] / "eos"
NODES = {
    str(path.relative_to(EOS)): [*ast.walk(ast.parse(path.read_text()))] for path in sorted(EOS.rglob("*.py"))
}

# The jobs themselves, and owners: those know a name, and may have no job (a session, a sink of one's own).
DERIVED = {
    "group_for": {
        *("job.py", "spark/jobs.py", "sql/job.py", "sql/outbox_job.py"),
        *("core/own_shard.py", "core/transactional.py"),
        *("spark/batch/batch.py", "spark/batch/planning.py", "spark/stream/sink.py"),
    },
    "shard_prefix": {
        *("identity.py", "shards.py"),
        *("runner/worker.py", "spark/batch/planning.py", "spark/stream/commit_log.py"),
        "ops/operate/owners.py",  # of any group that offsets are copied from
    },
    "ledger_group": {
        *("spark/jobs.py", "spark/stream/commit_log.py"),
        *("sql/outbox_job.py", "sql/relay.py", "sql/relays.py"),
    },
}


def kinds_of_jobs() -> list[ast.ClassDef]:
    """What has an identity with settings, and what that is derived from."""
    every = [one for nodes in NODES.values() for one in nodes if isinstance(one, ast.ClassDef)]
    found = [one for one in every if any(has_identity(member) for member in one.body)]
    bases = {named(base) for one in found for base in one.bases} - {"Protocol"}
    return [*found, *(one for one in every if one.name in bases)]


def has_identity(member: ast.stmt) -> bool:
    return (
        isinstance(member, ast.FunctionDef)
        and member.name == "identity"
        and [one.arg for one in member.args.args] == ["self", "settings"]
    )


def members(one: ast.ClassDef) -> set[str]:
    """What a class declares in its body."""
    functions = {member.name for member in one.body if isinstance(member, ast.FunctionDef)}
    return functions | {
        member.target.id
        for member in one.body
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name)
    }


def named(node: ast.expr) -> str:
    """The last part of a name; of a generic class, its own."""
    if isinstance(node, ast.Subscript):
        return named(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def guesses(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Where a kind of job is guessed: by its class, or by an attribute that only some have."""
    for node in nodes:
        asked: list[ast.AST] = []
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kind]):
                asked = [*ast.walk(kind)]
            case ast.Compare(left=ast.Call(func=ast.Name(id="type")), comparators=compared):
                asked = [inner for one in compared for inner in ast.walk(one)]
            case ast.MatchClass(cls=kind):
                asked = [kind]
            case ast.Call(
                func=ast.Name(id="hasattr" | "getattr"), args=[_, ast.Constant(value=str(name)), *_]
            ):
                if name in ATTRIBUTES:
                    yield ast.unparse(node)
        if any(named(one) in KINDS for one in asked if isinstance(one, ast.expr)):
            yield ast.unparse(node) if not isinstance(node, ast.MatchClass) else f"case {ast.unparse(node)}"


KINDS = {one.name for one in kinds_of_jobs()}
ATTRIBUTES = {member for one in kinds_of_jobs() for member in members(one) if not member.startswith("_")}


def test_every_kind_of_job_is_known_to_this_test() -> None:
    assert {"Job", "Declaration", "OutboxJob", "SparkJob", "SqlJob", "StreamJob", "Declared"} == KINDS
    assert {"commit", "dead_letters", "applied", "snapshots", "inputs"} <= ATTRIBUTES


def test_no_kind_of_job_is_guessed() -> None:
    found = [f"{path}: {guess}" for path, nodes in NODES.items() for guess in guesses(nodes)]
    assert not found, "Fix: read job.identity(settings), or job.kind"


@pytest.mark.parametrize("function", DERIVED)
def test_names_on_the_cluster_are_derived_in_one_place(function: str) -> None:
    calling = {
        path
        for path, nodes in NODES.items()
        for node in nodes
        if isinstance(node, ast.Call) and named(node.func) == function
    }
    assert calling == DERIVED[function], "Fix: read job.identity(settings)"


@pytest.mark.parametrize(
    "guess",
    [
        "isinstance(job, Job)",
        "isinstance(job, SparkJob | StreamJob)",
        "isinstance(self._job, (int, stream_job.StreamJob))",
        "issubclass(kind, Declared)",
        "type(job) is SparkJob",
        "hasattr(job, 'commit')",
        "getattr(job, 'dead_letters', None)",
        "match job:\n    case Job():\n        pass",
    ],
)
def test_a_guess_is_found(guess: str) -> None:
    assert [*guesses(ast.walk(ast.parse(guess)))]


def test_what_is_no_guess_is_none() -> None:
    for text in ("isinstance(error, EosError)", "getattr(sys, name)", "hasattr(number, '__index__')"):
        assert not [*guesses(ast.walk(ast.parse(text)))]

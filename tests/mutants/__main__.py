"""Break rules of the guarantee on purpose, one at a time, and look whether the tests notice: python -m tests.mutants."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

from tests.mutants.catalogue import MUTATIONS
from tests.mutants.mutation import Mutation
from tests.mutants.page import page
from tests.mutants.trial import TIMEOUT_S, Judged, Verdict, baseline, judge

REPOSITORY = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every mutation was killed, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which mutations; all if none is named")
    parser.add_argument("--list", action="store_true", help="print names and rules, and end")
    parser.add_argument("--page", action="store_true", help="write docs/MUTANTS.md, and end")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: 2)")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_S, help=f"seconds for one of them (default: {TIMEOUT_S:g})"
    )
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - {one.name for one in MUTATIONS}:
        parser.error(f"no mutation is called {', '.join(sorted(unknown))}; --list shows all")
    chosen = [one for one in MUTATIONS if not given.names or one.name in given.names]
    if given.list:
        for one in chosen:
            print(f"{one.name:32} {one.rule}")  # noqa: T201 - a command's output
        return 0
    if given.page:
        (REPOSITORY / "docs/MUTANTS.md").write_text(page(MUTATIONS))
        return 0
    return run(chosen, jobs=given.jobs, timeout_s=given.timeout)


def run(mutations: Sequence[Mutation], *, jobs: int, timeout_s: float, repository: Path = REPOSITORY) -> int:
    """Try these mutations, with a line for each."""
    began = time.monotonic()
    # By themselves, as with a mutation: some are green in company only.
    runs = sorted({one.tests for one in mutations})
    _say(f"{len(mutations)} mutations; first their tests without any, in {len(runs)} runs …")
    verdicts: Counter[Verdict] = Counter()
    with ThreadPoolExecutor(jobs) as pool, _only_what_runs_is_waited_for(pool):
        unfit: dict[str, Judged] = {}
        for found in pool.map(lambda tests: baseline(repository, tests, timeout_s=timeout_s), runs):
            unfit |= found
        pending = {pool.submit(_timed, repository, one, unfit, timeout_s): one for one in mutations}
        for number, done in enumerate(as_completed(pending), 1):
            judged, seconds = done.result()
            verdicts[judged.verdict] += 1
            why = f": {judged.why}" if judged.why else ""
            _say(
                f"[{number}/{len(mutations)}] {judged.verdict:8} {pending[done].name}{why} ({seconds:.0f} s)"
            )
    total = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    _say(f"{total} in {time.monotonic() - began:.0f} s")
    return 0 if verdicts[Verdict.KILLED] == len(mutations) else 1


@contextmanager
def _only_what_runs_is_waited_for(pool: ThreadPoolExecutor) -> Iterator[None]:
    """After a Ctrl-C."""
    try:
        yield
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def _timed(
    repository: Path, mutation: Mutation, unfit: Mapping[str, Judged], timeout_s: float
) -> tuple[Judged, float]:
    began = time.monotonic()
    return judge(repository, mutation, unfit, timeout_s=timeout_s), time.monotonic() - began


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a command's output


if __name__ == "__main__":
    sys.exit(main())

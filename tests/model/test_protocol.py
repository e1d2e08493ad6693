"""The rules of eos against every order of two owners, resent requests, late copies and expiries, within bounds.

A rule counts when leaving it out is convicted: each mutation below is, by a way that the search finds by itself.
"""

from __future__ import annotations

import pytest

from tests.model.protocol import EOS, NAIVE, Bounds, Rules, search

NO_CLAIM = EOS._replace(claim=False)  # Spark's tasks: short, and each with its own comparison
ONE_LATE_COPY = Bounds(inputs=1, resends=1, expiries=0, unanswered=0)
TWO_INPUTS = ONE_LATE_COPY._replace(inputs=2)


def _states(rules: Rules, bounds: Bounds) -> int:
    found = search(rules, bounds)
    assert found.anomaly is None, f"{found.anomaly.what}: {found.anomaly.trace}"
    return found.states


@pytest.mark.parametrize(
    ("rules", "bounds"), [(EOS, ONE_LATE_COPY), (NO_CLAIM, TWO_INPUTS)], ids=["claim", "no claim"]
)
def test_no_order_of_steps_breaks_the_rules_of_eos(rules: Rules, bounds: Bounds) -> None:
    assert _states(rules, bounds) > 50_000  # it has gone somewhere


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("rules", "bounds"),
    [
        (EOS, ONE_LATE_COPY._replace(resends=2)),
        (EOS, ONE_LATE_COPY._replace(expiries=1)),
        (EOS, ONE_LATE_COPY._replace(unanswered=1)),
        (EOS, TWO_INPUTS),
        (NO_CLAIM, TWO_INPUTS._replace(expiries=1)),
        (NO_CLAIM, TWO_INPUTS._replace(unanswered=1)),
    ],
)
def test_no_order_of_more_accidents_breaks_the_rules_of_eos(rules: Rules, bounds: Bounds) -> None:
    assert _states(rules, bounds) > 50_000


@pytest.mark.parametrize(
    ("rules", "bounds", "last_step"),
    [
        (NAIVE, TWO_INPUTS, "late copy arrives: EndTxn(commit)"),
        (EOS._replace(suspicion=False), TWO_INPUTS, "late copy arrives: EndTxn(commit)"),
        (EOS._replace(compare_before=False, compare_after=False), TWO_INPUTS, "rebuilds"),
        (EOS._replace(compare_after=False), TWO_INPUTS, "rebuilds"),
        (
            EOS._replace(records=2, offsets_after_each_record=True),
            TWO_INPUTS,
            "late copy arrives: TxnOffsetCommit 1",
        ),
    ],
    ids=[
        "the naive loop",
        "no suspicion",
        "no comparison",
        "compared only before the init",
        "offsets sent twice",
    ],
)
def test_without_a_rule_the_search_finds_the_accident(rules: Rules, bounds: Bounds, last_step: str) -> None:
    anomaly = search(rules, bounds).anomaly
    assert anomaly is not None
    assert anomaly.what.startswith("doubled or torn")
    assert any(last_step in step for step in anomaly.trace), "\n".join(anomaly.trace)


def test_the_comparison_before_the_init_only_spares_the_owner() -> None:
    """The one after it is the proof (docs/DESIGN.md): without the first one nothing is doubled either."""
    _states(NO_CLAIM._replace(compare_before=False), ONE_LATE_COPY)

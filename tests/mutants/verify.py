"""Rules of the verifier: what it must not pass over."""

from tests.mutants.mutation import Mutation

_COMPARISON = "tests/unit/test_verifier_comparison.py"
_ORDERING = "tests/unit/test_verifier_ordering.py"
_RANGES = "tests/unit/test_verifier_ranges.py"

VERIFY = (
    Mutation(
        "verify-loss",
        "a lost output is found",
        "eos/verifier/tables.py",
        ") WHERE nth > found;",
        ") WHERE nth > found + 1;",
        (f"{_COMPARISON}::test_a_missing_output_of_two_is_lost_and_torn",),
    ),
    Mutation(
        "verify-duplicate",
        "a duplicate is found",
        "eos/verifier/tables.py",
        ") WHERE nth > expected;",
        ") WHERE nth > expected + 1;",
        (f"{_COMPARISON}::test_an_output_written_twice_is_duplicated",),
    ),
    Mutation(
        "verify-torn",
        "a record with a part of its outputs is torn",
        "eos/verifier/tables.py",
        "HAVING gone < outputs",
        "HAVING gone > outputs",
        (f"{_COMPARISON}::test_a_missing_output_of_two_is_lost_and_torn",),
    ),
    Mutation(
        "verify-place",
        "an output in another partition than its key's is misplaced",
        "eos/verifier/tables.py",
        "    OR min(want) <> min(place) OR max(want) <> min(place);",
        "    ;",
        (f"{_ORDERING}::test_a_record_in_a_partition_that_its_key_does_not_hash_to_is_misplaced",),
    ),
    Mutation(
        "verify-headers",
        "headers belong to an output",
        "eos/verifier/identities.py",
        '_framed(headers) if headers else b""',
        'b"" if headers else _framed(headers)',
        (f"{_COMPARISON}::test_a_record_that_differs_in_any_field_is_lost_and_unexpected",),
    ),
    Mutation(
        "verify-timestamp",
        "so does a timestamp that the transform sets",
        "eos/verifier/identities.py",
        "timestamp_ms if sets_timestamp else None",
        "None",
        (f"{_COMPARISON}::test_a_timestamp_that_the_transform_sets_is_compared",),
    ),
    Mutation(
        "verify-order",
        "outputs of one input partition keep its order",
        "eos/verifier/ordering.py",
        "possible = [state for state in states if state.get(source, -1) < expected]",
        "possible = list(states)",
        (
            f"{_ORDERING}::test_records_without_a_key_in_reversed_order_are_reordered",
            f"{_COMPARISON}::test_two_outputs_of_a_key_in_the_wrong_order_are_reordered",
        ),
    ),
    Mutation(
        "verify-order-of-alike",
        "so do those that several input partitions make alike",
        "eos/verifier/ordering.py",
        "        if not branches:\n            return False",
        "        if not branches:\n            return True",
        (f"{_ORDERING}::test_outputs_of_two_partitions_with_equal_contents_in_reversed_order_are_reordered",),
    ),
    Mutation(
        "verify-range",
        "what is processed ends at the committed offset",
        "eos/verifier/state.py",
        "end = min(start if committed is None else committed, log.end)",
        "end = log.end",
        (
            f"{_RANGES}::test_what_is_processed_ends_at_the_committed_offset_and_the_output_at_its_settled_end",
        ),
    ),
    Mutation(
        "verify-begin",
        "nothing is left out in front of the committed offset in silence",
        "eos/verifier/state.py",
        "if committed is not None and partition in begins and start > committed:",
        "if committed is None and partition in begins and start > log.end:",
        (f"{_RANGES}::test_a_group_cannot_have_begun_behind_its_committed_offset",),
    ),
)

"""Rules of the verifier: what it must not pass over."""

from tests.mutants.mutation import Mutation

_COMPARISON = "tests/unit/ops/test_verifier_comparison.py"
_ORDERING = "tests/unit/ops/test_verifier_ordering.py"
_RANGES = "tests/unit/ops/test_verifier_ranges.py"
_TABLES = "tests/sql/test_job.py::TestVerification"
_OUTBOX = "tests/sql/test_verify_outbox.py"

VERIFY = (
    Mutation(
        "verify-loss",
        "a lost output is found",
        "eos/ops/verifier/tables.py",
        ") WHERE nth > found;",
        ") WHERE nth > found + 1;",
        (f"{_COMPARISON}::test_a_missing_output_of_two_is_lost_and_torn",),
    ),
    Mutation(
        "verify-duplicate",
        "a duplicate is found",
        "eos/ops/verifier/tables.py",
        ") WHERE nth > expected;",
        ") WHERE nth > expected + 1;",
        (f"{_COMPARISON}::test_an_output_written_twice_is_duplicated",),
    ),
    Mutation(
        "verify-torn",
        "a record with a part of its outputs is torn",
        "eos/ops/verifier/tables.py",
        "HAVING gone < outputs",
        "HAVING gone > outputs",
        (f"{_COMPARISON}::test_a_missing_output_of_two_is_lost_and_torn",),
    ),
    Mutation(
        "verify-place",
        "an output in another partition than its key's is misplaced",
        "eos/ops/verifier/tables.py",
        "    OR min(want) <> min(place) OR max(want) <> min(place);",
        "    ;",
        (f"{_ORDERING}::test_a_record_in_a_partition_that_its_key_does_not_hash_to_is_misplaced",),
    ),
    Mutation(
        "verify-headers",
        "headers belong to an output",
        "eos/ops/verifier/identities.py",
        '_framed(headers) if headers else b""',
        'b"" if headers else _framed(headers)',
        (f"{_COMPARISON}::test_a_record_that_differs_in_any_field_is_lost_and_unexpected",),
    ),
    Mutation(
        "verify-timestamp",
        "so does a timestamp that the transform sets",
        "eos/ops/verifier/identities.py",
        "timestamp_ms if sets_timestamp else None",
        "None",
        (f"{_COMPARISON}::test_a_timestamp_that_the_transform_sets_is_compared",),
    ),
    Mutation(
        "verify-order",
        "outputs of one input partition keep its order",
        "eos/ops/verifier/ordering.py",
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
        "eos/ops/verifier/ordering.py",
        "        if not branches:\n            return False",
        "        if not branches:\n            return True",
        (f"{_ORDERING}::test_outputs_of_two_partitions_with_equal_contents_in_reversed_order_are_reordered",),
    ),
    Mutation(
        "verify-range",
        "what is processed ends at the committed offset",
        "eos/ops/verifier/state.py",
        "end = min(start if committed is None else committed, log.end)",
        "end = log.end",
        (
            f"{_RANGES}::test_what_is_processed_ends_at_the_committed_offset_and_the_output_at_its_settled_end",
        ),
    ),
    Mutation(
        "verify-begin",
        "nothing is left out in front of the committed offset in silence",
        "eos/ops/verifier/state.py",
        "if committed is not None and partition in begins and start > committed:",
        "if committed is None and partition in begins and start > log.end:",
        (f"{_RANGES}::test_a_group_cannot_have_begun_behind_its_committed_offset",),
    ),
    Mutation(
        "verify-no-key",
        "a record without a key is not one with an empty key",
        "eos/ops/verifier/identities.py",
        "_NONE if key is None else len(key)",
        'len(key or b"")',
        (f"{_COMPARISON}::test_nothing_is_not_empty",),
    ),
    Mutation(
        "verify-tombstone",
        "a tombstone is no empty value",
        "eos/ops/verifier/identities.py",
        "            _NONE if value is None else len(value),\n",
        '            len(value or b""),\n',
        (f"{_COMPARISON}::test_nothing_is_not_empty",),
    ),
    Mutation(
        "verify-no-header-value",
        "a header without a value is not one with an empty value",
        "eos/ops/verifier/identities.py",
        "_HEADER(len(name), _NONE if value is None else len(value))",
        '_HEADER(len(name), len(value or b""))',
        (f"{_COMPARISON}::test_nothing_is_not_empty",),
    ),
    Mutation(
        "verify-any-error-text",
        "the text of an error is left out of dead letters alone",
        "eos/ops/verifier/identities.py",
        "if topic == self._dead_letters:",
        "if self._dead_letters:",
        (f"{_COMPARISON}::test_the_text_of_an_error_counts_outside_of_the_dead_letters",),
    ),
    Mutation(
        "verify-unknown-output",
        "a beginning of a partition that the job does not write is refused",
        "eos/ops/verifier/state.py",
        '    _check_known(begins, state.outputs, "output_from")\n',
        "",
        (f"{_RANGES}::test_a_beginning_of_what_the_job_does_not_read_or_write_is_refused",),
    ),
    Mutation(
        "verify-deleted-unprocessed",
        "input that was deleted before it was processed is not complete",
        "eos/ops/verifier/state.py",
        "if p in with_records or gone(log, processed[p])",
        "if p in with_records",
        (
            "tests/broker/test_verify_outputs.py::test_input_that_was_deleted_before_it_was_processed_is_not_complete",
        ),
    ),
    Mutation(
        "verify-table-failed",
        "of a job with tables, a record below the position that fails without a dead letter is found",
        "eos/sql/tables_report.py",
        "bool(self.problems or self.failed)",
        "bool(self.problems)",
        (
            f"{_TABLES}::test_record_that_fails_below_the_position_without_a_dead_letter_is_right_under_skip_alone",
        ),
    ),
    Mutation(
        "verify-table-shared",
        "a row that several input partitions write, and none deletes, is there",
        "eos/sql/expected_rows.py",
        "and_(or_(kept, lasting), no_actual)",
        "and_(kept, no_actual)",
        (f"{_TABLES}::test_row_that_several_partitions_write_and_none_deletes_is_missed",),
    ),
    Mutation(
        "verify-table-letter-ahead",
        "a dead letter is committed together with the position that passes its record",
        "eos/sql/verify.py",
        "if place[1] >= stored.get(place[0], 0)",
        "if False",
        (f"{_TABLES}::test_dead_letter_of_a_record_that_is_not_processed_is_a_problem",),
    ),
    Mutation(
        "verify-table-open",
        "input that an open transaction holds back is not complete",
        "eos/sql/tables_report.py",
        "return not self.held_back and not any",
        "return not any",
        (
            f"{_TABLES}::test_all_is_processed_where_only_aborted_records_follow_and_not_where_a_transaction_is_open",
        ),
    ),
    Mutation(
        "verify-outbox-blind",
        "where records were deleted and rows pruned, nothing is called exactly once",
        "eos/sql/outbox_report.py",
        "if not self.whole and self.pruned:",
        "if False:",
        (f"{_OUTBOX}::test_where_records_were_deleted_and_rows_pruned_nothing_is_shown",),
    ),
    Mutation(
        "verify-outbox-left-out",
        "a row that was left out is lost, unless the policy says so",
        "eos/sql/outbox_report.py",
        "(self.left_out and not self.skips)",
        "False",
        (f"{_OUTBOX}::test_a_row_that_can_be_no_record_is_right_under_skip_alone",),
    ),
)

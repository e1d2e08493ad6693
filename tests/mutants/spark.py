"""Rules of Spark's writer and of the ledger."""

from tests.mutants.mutation import Mutation

_LEDGER = "tests/unit/test_spark_ledger.py"
_ENTRY = "tests/unit/test_spark_done_entry.py"
_RANGES = "tests/unit/test_spark_done_ranges.py"
_INPUT = "tests/unit/test_spark_stream_input.py"

SPARK = (
    Mutation(
        "entry-that-says-the-same",
        "a shard is written over the very entry that was planned with",
        "eos/spark/ledger.py",
        "if expected is not None and expected == found:",
        "if expected is not None and expected.is_said_by(found):",
        (f"{_LEDGER}::test_entry_that_changed_since_the_plan_is_refused",),
    ),
    Mutation(
        "begun-ledger-lost",
        "a first batch that was begun is not begun anew without its ledger",
        "eos/spark/ledger.py",
        "if batch == 0 and not stored and not begun:",
        "if batch == 0 and not stored:",
        (f"{_LEDGER}::test_first_batch_without_entries_is_refused_where_it_was_begun_before",),
    ),
    Mutation(
        "another-queries-ledger",
        "the ledger of another query is refused",
        "eos/spark/ledger.py",
        "    if first.query != query:\n",
        "    if not first.query:\n",
        (f"{_LEDGER}::test_what_does_not_fit_is_refused_with_the_way_out",),
    ),
    Mutation(
        "shards-change-inside-a-batch",
        "a batch of which a shard is written keeps its number of shards",
        "eos/spark/ledger.py",
        "    if written:\n        return _unfinished",
        "    if written and first.shards == shards:\n        return _unfinished",
        (f"{_LEDGER}::test_batch_that_is_begun_keeps_its_number_of_shards",),
    ),
    Mutation(
        "missing-entry",
        "a shard whose entry is missing is not written again",
        "eos/spark/ledger.py",
        "        if k in stored or batch > 0 or not first.was:\n",
        "        if k in stored:\n",
        (f"{_LEDGER}::test_what_does_not_fit_is_refused_with_the_way_out",),
    ),
    Mutation(
        "one-ledger-for-two-sinks",
        "two sinks of one group have ledgers of their own",
        "eos/shards.py",
        "return f\"{group if group == app else f'{group}.{app}'}.ledger.{shard}\"",
        'return f"{group}.ledger.{shard}"',
        (f"{_LEDGER}::test_groups_begin_with_the_sinks_group_and_no_two_sinks_have_the_same",),
    ),
    Mutation(
        "marks-of-any-shard",
        "where a batch's input ends is committed with its first shard",
        "eos/spark/done_entry.py",
        "return entry if self._number else entry.merged(self._done.marks)",
        "return entry",
        (f"{_ENTRY}::test_only_the_first_shard_has_marks",),
    ),
    Mutation(
        "another-drivers-entry",
        "an entry that is neither the plan's nor its own write's is a conflict",
        "eos/spark/ledger.py",
        "        if self.after.is_said_by(found):\n            return True\n",
        "        if found is not None:\n            return True\n",
        (
            f"{_ENTRY}::test_entry_of_another_driver_is_a_conflict",
            f"{_LEDGER}::test_entry_that_changed_since_the_plan_is_refused",
        ),
    ),
    Mutation(
        "content-not-kept",
        "what a shard came to is compared with what is written of it",
        "eos/spark/done_entry.py",
        "        self._written = entry.content\n",
        "",
        (f"{_ENTRY}::test_entry_that_a_twin_has_written_is_what_the_rows_are_compared_with",),
    ),
    Mutation(
        "gap-passed-over",
        "a query goes on where its last batch ended",
        "eos/spark/stream_input.py",
        "if p in expected and mark.offset != expected[p]):",
        "if p in expected and mark.offset > expected[p]):",
        (f"{_INPUT}::test_query_that_goes_on_elsewhere_is_refused_with_what_the_checkpoint_is_to_say",),
    ),
    Mutation(
        "ends-of-the-file",
        "a batch ends where the plan that runs does, and the checkpoint must say so",
        "eos/spark/stream_input.py",
        "if other := sorted(p for p, end in ends.items() if planned.get(p) != end):",
        "if other := sorted(p for p in ends if p not in planned):",
        (
            "tests/spark/test_stream_two_plans.py::test_a_batch_whose_plan_was_replaced_before_it_was_written_is_refused_and_goes_on_at_the_next_start",
        ),
    ),
    Mutation(
        "second-name",
        "a second sink of a query that writes to the same topic is refused",
        "eos/spark/begun.py",
        "            if (shared := _words(theirs, _OUTPUTS) & self._outputs) and self._prefix",
        "            if (shared := _words(theirs, _OUTPUTS) - self._outputs) and self._prefix",
        (
            "tests/spark/test_stream_names.py::test_a_second_name_for_the_same_query_and_topic_is_refused_and_writes_nothing",
        ),
    ),
    Mutation(
        "task-does-not-ask",
        "a task asks under its own fence whether its shard is done",
        "eos/spark/writer.py",
        "                    if not done.is_done(producer.take_over(done.group, done.partitions)):\n",
        "                    if producer.take_over(done.group, done.partitions) is not None:\n",
        ("tests/broker/test_spark_writer.py::test_task_that_comes_after_its_twin_writes_nothing",),
    ),
    Mutation(
        "conflict-is-done",
        "a range that stands elsewhere than at its ends is a conflict",
        "eos/spark/done_ranges.py",
        "        if found != dict(self._ends):\n",
        "        if not found:\n",
        (f"{_RANGES}::test_shard_that_stands_elsewhere_is_a_conflict",),
    ),
    Mutation(
        "foreign-range",
        "so is an offset that another job or mode has committed since the plan",
        "eos/spark/done_ranges.py",
        "        self._refuse_foreign(stored)\n        found",
        "        found",
        (
            f"{_RANGES}::test_offset_that_another_job_or_mode_has_committed_since_the_plan_is_a_conflict",
            f"{_RANGES}::test_offset_of_another_tool_is_a_conflict",
        ),
    ),
    Mutation(
        "shard-in-two-tasks",
        "a shard whose rows came in two tasks is refused",
        "eos/spark/done_ranges.py",
        "        self._refuse_split(stored)\n        return True",
        "        return True",
        (f"{_RANGES}::test_shard_whose_rows_came_in_two_tasks_of_one_run_is_refused",),
    ),
)

"""Rules of `eos prove`: what its judge must not pass over, and whom it must not accuse."""

from tests.mutants.mutation import Mutation

_AUDIT = "tests/unit/prove/test_audit.py"
_WRITTEN = (f"{_AUDIT}::test_an_anomaly_that_was_written_into_the_log_is_found",)
_FINISHED = (
    "tests/unit/prove/test_trial_report.py::test_what_is_not_finished_is_not_called_wrong_and_what_is_wrong_is_called_so_in_any_case",
)

PROVE = (
    Mutation(
        "prove-aborted-seen",
        "a record of an aborted transaction that readers see is found",
        "eos/prove/audit.py",
        "for offset in seen[bisect_left(seen, first) : bisect_right(seen, last)]:",
        "for offset in seen[:0]:",
        _WRITTEN,
    ),
    Mutation(
        "prove-torn",
        "each decision of the coordinator has its marker in each partition",
        "eos/prove/audit.py",
        "return all(ended)",
        "return True",
        _WRITTEN,
    ),
    Mutation(
        "prove-outputs-alone",
        "outputs are committed together with offsets",
        "eos/prove/audit.py",
        "if written and all(one.topic != OFFSETS for one in decision.partitions)",
        "if not written",
        _WRITTEN,
    ),
    Mutation(
        "prove-offset-back",
        "a committed offset does not go back",
        "eos/prove/audit.py",
        "if offset < was:",
        "if offset < 0:",
        _WRITTEN,
    ),
    Mutation(
        "prove-offset-too-high",
        "a transaction holds the outputs of the input whose offset it commits",
        "eos/prove/audit.py",
        "if len(commits) > 1:",
        "if len(commits) > 2:",
        (f"{_AUDIT}::test_offset_that_was_too_high_until_the_next_commit_is_found",),
    ),
    Mutation(
        "prove-many-makers",
        "an output that several records make speaks against no transaction",
        "eos/prove/origins.py",
        "None if seen else Tag(",
        "None if seen and False else Tag(",
        ("tests/unit/prove/test_origins.py::test_output_that_is_made_more_than_once_has_none",),
    ),
    Mutation(
        "prove-unfinished",
        "a job that did not catch up is not called wrong",
        "eos/prove/trial_report.py",
        "finished = proof.verdict.against or not proof.verdict.unfinished",
        "finished = True",
        _FINISHED,
    ),
    Mutation(
        "prove-wrong-and-unfinished",
        "a wrong job is called wrong, whether it has caught up or not",
        "eos/prove/trial_report.py",
        'if proof.verdict.against:\n        return "not exactly once"',
        'if proof.verdict.against and not proof.verdict.unfinished:\n        return "not exactly once"',
        _FINISHED,
    ),
    Mutation(
        "prove-empty",
        "a job that makes nothing of its input is not shown to be right",
        "eos/prove/trial.py",
        "report.empty and self.verdict.exactly_once",
        "False",
        (
            "tests/unit/prove/test_trial_report.py::test_a_job_that_makes_nothing_of_its_input_is_not_shown_to_be_right",
        ),
    ),
    Mutation(
        "prove-any-order-of-rows",
        "a record of an outbox is not in front of one that it depends on",
        "eos/prove/rows_order.py",
        "(ended <= behind OR ",
        "(ended < 0 OR ",
        ("tests/sql/test_rows_order.py::test_a_record_behind_one_that_depends_on_it_is_found",),
    ),
)

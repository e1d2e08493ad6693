"""What a broker's refusal of a timestamp says: of a record, or of a clock."""

from __future__ import annotations

import pytest

from eos.errors import AbortableError, ConfigError, EosError, RecordRefusedError
from eos.kafka.refused_times import with_the_cause

both_codes = pytest.mark.parametrize("code", ["INVALID_TIMESTAMP", "INVALID_RECORD"])


def cause(code: str, *, lacks_key: bool = False, stamped: bool = False, together: int = 2) -> EosError:
    error = RecordRefusedError("out: refused", code=code)
    error.outputs = {"a fingerprint"}
    return with_the_cause(error, "out", lacks_key=lacks_key, stamped=stamped, together=together)


@both_codes
def test_refusal_of_the_clients_own_time_is_a_clocks_fault(code: str) -> None:
    found = cause(code)
    assert isinstance(found, ConfigError)
    assert "message.timestamp.after.max.ms" in str(found)
    assert found.code == code
    assert isinstance(cause("INVALID_TIMESTAMP", lacks_key=True), ConfigError)


@both_codes
def test_timestamp_that_an_output_was_given_is_named_and_no_key(code: str) -> None:
    found = cause(code, stamped=True)
    assert isinstance(found, RecordRefusedError)
    assert "message.timestamp.before.max.ms" in str(found)
    assert "clock" in str(found)
    assert "key" not in str(found)
    assert found.outputs == {"a fingerprint"}


def test_record_without_a_key_may_be_refused_for_that() -> None:
    found = cause("INVALID_RECORD", lacks_key=True)
    assert isinstance(found, RecordRefusedError)
    assert "no key and the topic is compacted" in str(found)
    assert "clock" in str(found)


def test_other_failures_stay_as_they_are() -> None:
    error = AbortableError("out: timed out", code="_MSG_TIMED_OUT")
    assert with_the_cause(error, "out", lacks_key=False, stamped=False, together=2) is error
    assert str(cause("INVALID_RECORD", together=1)) == "out: refused", "a single one has INVALID_TIMESTAMP"
    assert str(cause("MSG_SIZE_TOO_LARGE")) == "out: refused"

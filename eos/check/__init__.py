"""Checks from outside: a cluster before a run, an output after it, transactions as the broker sees them.

Nothing here uses the session, the loop or the transactional producer: a check must not share the bugs it looks for.
"""

from eos.check.preflight import preflight
from eos.check.report import Example, Kind, VerificationReport
from eos.check.transactions import TransactionsView
from eos.check.verify import verify

__all__ = ["Example", "Kind", "TransactionsView", "VerificationReport", "preflight", "verify"]

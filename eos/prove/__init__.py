"""Prove: run anybody's job on a throw-away cluster, torment it by a seeded schedule, and judge what it wrote."""

from eos.prove.faults import Kind
from eos.prove.judge import Verdict
from eos.prove.proving import prove
from eos.prove.trial import Proof, Trial

__all__ = ["Kind", "Proof", "Trial", "Verdict", "prove"]

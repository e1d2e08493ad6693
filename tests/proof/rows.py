"""Rows: every line of the proof, in one place."""

from __future__ import annotations

from tests.proof.chain_storm import A8
from tests.proof.cut_off import A10
from tests.proof.epochs import A15
from tests.proof.java_zombie import A7_JAVA
from tests.proof.late_packets import A5
from tests.proof.other_brokers import UNVERIFYING
from tests.proof.row import Row
from tests.proof.under_fire import ROWS as UNDER_FIRE

ROWS: tuple[Row, ...] = (*UNDER_FIRE, A5, UNVERIFYING, A7_JAVA, A8, A10, A15)

"""How long tests wait for what must come: one generous constant, for a machine that does ten other things.

A test that passes has not waited for it. What must *not* happen, and what must be quick, is not measured by it: such a bound
stands in its test, with its reason.
"""

PATIENCE_S = 120.0

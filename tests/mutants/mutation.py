"""Mutation: one rule of the guarantee, broken on purpose in the code, and the tests that have to notice."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ATTRIBUTE = re.compile(r"\bself\.([A-Za-z_]\w*)")


@dataclass(frozen=True)
class Mutation:
    """A rule, what breaks it, and what turns red.

    Attributes:
        name: what the command line calls it.
        rule: the rule that the code keeps, in words.
        file: the module that keeps it, below the repository.
        old: the text that keeps it; it stands there exactly once.
        new: the text that breaks it.
        tests: ids as pytest prints them, without parameters; each of them must fail.
    """

    name: str
    rule: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def is_stale(self, text: str) -> str:
        """Why this mutation cannot be made in the file's text; "" if it can."""
        found = text.count(self.old)
        if found != 1:
            return f"{self.file} has the old text {found} times"
        # An attribute that nothing has raises at once, so that any test turns red: for that, and not for the rule.
        strange = [one for one in _ATTRIBUTE.findall(self.new) if not re.search(rf"\b{one}\b", text)]
        if strange:
            return f"the new text uses what {self.file} does not have: {', '.join(strange)}"
        return "the new text is the old one" if self.old == self.new else ""

    def applied(self, text: str) -> str:
        """The file's text with the rule broken."""
        return text.replace(self.old, self.new)

"""Docstrings as Markdown: examples with ``>>>`` become code, and what Sphinx alone understands goes."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> .*\n?(?:^(?:>>> |\.\.\.).*\n?|^\S.*\n?)*", re.MULTILINE)
_NEVER_RUN = re.compile(r" *# doctest: \+SKIP$", re.MULTILINE)
_LITERAL = re.compile(r"^::$\n?|(?<=\w:):$", re.MULTILINE)  # "::" before indented code
_ROLE = re.compile(r":(?:attr|class|func|meth):(?=`)")


class AsMarkdown(griffe.Extension):
    """Is asked about each object, before its docstring is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change its docstring."""
        if obj.docstring is None:
            return
        if (
            obj.is_module and obj.is_init_module
        ):  # behind its first paragraph it tells developers about its modules
            obj.docstring.value = obj.docstring.value.partition("\n\n")[0]
        else:
            text = _LITERAL.sub("", _NEVER_RUN.sub("", _ROLE.sub("", obj.docstring.value)))
            obj.docstring.value = _EXAMPLE.sub(
                lambda example: f"```pycon\n{example[0].rstrip()}\n```\n", text
            )

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Show the fields of a NamedTuple, which has no constructor that could be read."""
        if cls.docstring is not None and "NamedTuple" in map(str, cls.bases):
            fields = [
                f"    {name}: {field.annotation}" + ("" if field.value is None else f" = {field.value}")
                for name, field in cls.attributes.items()
                if not field.has_labels("property")
            ]
            made = ",\n".join(fields)
            cls.docstring.value = f"```python\n{cls.name}(\n{made},\n)\n```\n\n{cls.docstring.value}"

"""Printable text: what comes from outside, so that it cannot drive a terminal, hide itself, or look like a line of ours.

A key, a header, an error's text, a group's or a member's id may hold escape sequences (ESC and C1 move the cursor, clear
the screen, set its title), marks that turn the direction of writing, characters without width, and line breaks. Each is
shown as Python writes it in a literal (x1b, u202e behind a backslash). Letters, signs and emoji of any script stay as they are.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

# Control, format (direction, zero width), surrogates, private, unassigned; line and paragraph separators.
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Letters and marks that show nothing: they make two names look alike.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """The text on one line, with everything that is not printable escaped."""
    if text.isascii() and text.isprintable():  # nearly always
        return text
    return "".join(
        _escaped(one) if _is_unprintable(one) and not _joins_emoji(text, at) else one
        for at, one in enumerate(text)
    )


def printable_lines(text: str, *, indent: str = "") -> str:
    """The text with its line breaks; all else that is not printable is escaped.

    ``indent`` begins all lines but the first, so that none of them looks like a line of its own. A line that begins with a
    space stays as it is.
    """
    first, *others = (printable(line.expandtabs()) for line in text.split("\n"))
    return "\n".join([first, *(line if line[:1] in {"", " "} else f"{indent}{line}" for line in others)])


def printable_json(line: str) -> str:
    """JSON with what is not printable as JSON's own escapes: a reader of it gets the same texts."""
    if line.isascii() and line.isprintable():
        return line
    return "".join(
        _in_json(one) if _is_unprintable(one) and one != "\n" and not _joins_emoji(line, at) else one
        for at, one in enumerate(line)
    )


def printable_values(value: Any) -> Any:
    """The same structure with each text in it printable, the keys of tables too."""
    match value:
        case str():
            return printable(value)
        case Mapping():
            return {
                printable(key) if isinstance(key, str) else key: printable_values(one)
                for key, one in value.items()
            }
        case list() | tuple():
            return [printable_values(one) for one in value]
    return value


def _is_unprintable(one: str) -> bool:
    return one in _BLANK or unicodedata.category(one) in _UNPRINTABLE


def _joins_emoji(text: str, at: int) -> bool:
    """A family is several people with U+200D between them."""
    around = text[at - 1 : at] + text[at + 1 : at + 2]
    return text[at] == "\u200d" and len(around) == 2 and all(_is_of_emoji(one) for one in around)  # noqa: PLR2004


def _is_of_emoji(one: str) -> bool:
    return one == "\ufe0f" or unicodedata.category(one) in {"So", "Sk"}


def _escaped(one: str) -> str:
    return _SHORT.get(one) or ascii(one)[1:-1]


def _in_json(one: str) -> str:
    units = one.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))

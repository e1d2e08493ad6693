"""Headers of a record as JSON, for a column of text.

An array of [name, value] in the record's order: a value is a text, null, or {"base64": …} where it is no UTF-8. Written by hand,
an object of names and texts does as well.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any

from eos.headers import Headers


def to_json(headers: Headers) -> str:
    """The text of some headers."""
    return json.dumps([[name, _shown(value)] for name, value in headers], ensure_ascii=False)


def from_json(text: str) -> Headers:
    """The headers of a text.

    Raises:
        ValueError: it is in another form.
    """
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError("headers are not nested") from error
    pairs = list(found.items()) if isinstance(found, dict) else found
    if not isinstance(pairs, list):
        raise ValueError("headers are an array of [name, value], or an object")  # noqa: TRY004 - of the text, not of a call
    return tuple(_pair(pair) for pair in pairs)


def _shown(value: bytes | None) -> str | dict[str, str] | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


def _pair(pair: Any) -> tuple[str, bytes | None]:
    match pair:
        case [str(name), None]:
            return name, None
        case [str(name), str(value)] | (str(name), str(value)):
            return name, value.encode()
        case [str(name), {"base64": str(value)}]:
            return name, b64decode(value, validate=True)
    raise ValueError('a header is [name, value], and a value a text, null, or {"base64": …}')

"""Page: the job's page for people, one file without any part from elsewhere, and the policy that holds a browser to that."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

_INLINE = re.compile(rb"<(style|script)>(.*?)</\1>", re.DOTALL)


@cache
def html() -> bytes:
    """The page. It asks for /status.json itself."""
    return files("eos.ops.observe").joinpath("page.html").read_bytes()


@cache
def policy() -> str:
    """Its Content-Security-Policy: its own style and script by their digests, and this server's JSON; nothing else."""
    hashes = {
        kind.decode(): "'sha256-" + base64.b64encode(hashlib.sha256(text).digest()).decode() + "'"
        for kind, text in _INLINE.findall(html())
    }
    return (
        f"default-src 'none'; style-src {hashes['style']}; script-src {hashes['script']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )

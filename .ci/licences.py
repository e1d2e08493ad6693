"""Lists the licence of every package that eos installs, extras included, in docs/LICENCES.md.

``--check`` writes nothing and fails if the list is not what is installed, or a licence is none of those that this
project may be used with. The names come from the packages' own metadata, read by pip-licenses.
"""
# ruff: noqa: INP001, T201 - a script, which prints

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import metadata, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[1]
LIST = REPOSITORY / "docs" / "LICENCES.md"
PROJECT = "eos-kafka"
LIMIT_S = 60
# Each of them can be used beside the Apache License 2.0 without passing its terms on to the user's own code: the LGPL too, as
# long as Python imports the package as it was published.
ALLOWED = (
    "Apache",
    "BSD",
    "MIT",
    "ISC",
    "LGPL",
    "MPL",
    "Mozilla",
    "PSF",
    "Python Software Foundation",
    "Unlicense",
    "Zlib",
    "CC0",
)
HEAD = """# Licences

eos is under the [Apache License 2.0](../LICENSE). These packages are installed with it, under the licences that
their own metadata names; "with" says which extra asks for them. Written by `make licences`.

The jars of Apache Kafka and of Spark's Kafka connector, which `eos.local` downloads, are not part of the package;
they are under the Apache License 2.0, and what they bundle is in their own NOTICE files.

The site of the documentation draws with Mermaid. docs/assets/mermaid.tiny.js is a copy of `@mermaid-js/tiny` 11.12.0 from npm, under the MIT license
(docs/assets/mermaid.LICENSE). It is not part of the package.

| package | licence | with |
|---|---|---|
"""


def installed_with(project: str) -> dict[str, str]:
    """Package -> the extra that asks for it, "" if none has to; as installed in this interpreter's environment."""
    extras = ("", *metadata(project).get_all("Provides-Extra", ()))
    found: dict[str, str] = {}
    for asked in extras:
        waiting = [(project, asked)]
        seen = {(project, asked)}
        while waiting:
            package, extra = waiting.pop()
            for requirement in map(Requirement, requires(package) or ()):
                if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                    continue
                name = canonicalize_name(requirement.name)
                found.setdefault(name, asked)
                for one in {(name, ""), *((name, own) for own in requirement.extras)} - seen:
                    seen.add(one)
                    waiting.append(one)
    return found


def licences(names: list[str]) -> dict[str, str]:
    """Package -> licence."""
    command = [sys.executable, "-m", "piplicenses", "--format=json", "--from=mixed", "--packages", *names]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
    return {canonicalize_name(one["Name"]): one["License"] for one in json.loads(shown)}


def allowed(licence: str) -> bool:
    """Whether every part of it (they are joined by AND or a semicolon) is one of those, or offers one to choose."""
    return all(any(word in part for word in ALLOWED) for part in re.split(r" AND |;", licence))


def main() -> int:
    """Write the list, or check it."""
    asked = installed_with(PROJECT)
    named = licences(sorted(asked))
    rows = [f"| {name} | {named[name]} | {asked[name]} |\n" for name in sorted(named)]
    text = HEAD + "".join(rows)
    if strange := [f"{name}: {licence}" for name, licence in named.items() if not allowed(licence)]:
        print("licences that nobody has looked at (.ci/licences.py, ALLOWED):", *strange, sep="\n")
        return 1
    if "--check" not in sys.argv:
        LIST.write_text(text)
    elif not LIST.exists() or LIST.read_text() != text:
        print(f"{LIST.relative_to(REPOSITORY)} is not what is installed: run make licences")
        return 1
    print(f"{len(rows)} packages, each under a licence that allows this use")
    return 0


if __name__ == "__main__":
    sys.exit(main())

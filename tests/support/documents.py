"""The Python blocks of README and docs, each by the page and the heading that it stands under, and who runs it."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
_PARTS = re.compile(
    r"^#+ (?P<heading>[^\n]*)$|^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)

PAGES_AND_TESTS = {
    "README.md": ["tests/testing/test_documents.py"],
    "docs/SERIALIZERS.md": ["tests/packaging/test_docs_serializers.py"],
    "docs/guides/fault-injection.md": ["tests/prove/test_prove.py"],
    "docs/guides/migrating.md": ["tests/testing/test_migrating_page.py"],
    "docs/guides/own-loop.md": ["tests/testing/test_own_loop_page.py"],
    "docs/guides/testing.md": ["tests/testing/test_guides.py"],
    "docs/guides/tutorial.md": ["tests/testing/test_documents.py", "tests/testing/test_guides.py"],
    "docs/guides/spark-batch.md": ["tests/spark/test_documents.py"],
    "docs/guides/spark-cluster.md": ["tests/processes/test_local_spark.py"],
    "docs/guides/spark-dependencies.md": ["tests/processes/test_spark_dependencies.py"],
    "docs/guides/spark-stream.md": ["tests/spark/test_documents.py"],
    "docs/guides/topic-to-table.md": ["tests/sql/test_example.py"],
    "docs/quickstart.md": ["tests/testing/test_guides.py"],
    "docs/TESTING.md": ["tests/testing/test_documents.py"],
}


def blocks(page: str, language: str = "python") -> dict[str, str]:
    """Heading -> the code under it, as it stands; a second block under one heading is ``heading (2)``."""
    found: dict[str, str] = {}
    heading, count = "", 0
    for part in _PARTS.finditer((REPOSITORY / page).read_text()):
        if part["heading"] is not None:
            heading, count = part["heading"], 0
        elif part["language"] == language:
            count += 1
            found[heading if count == 1 else f"{heading} ({count})"] = part["code"]
    return found


def named_files(page: str) -> dict[str, str]:
    """File name -> the code of each Python and TOML block whose first line is a comment with its name."""
    code = [*blocks(page).values(), *blocks(page, "toml").values()]
    return {named[1]: text for text in code if (named := re.match(r"# (\S+\.\w+)\n", text))}

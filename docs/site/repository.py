"""The README as the first page of the site, and a page for each file outside of docs/ that a page links to.

So a link that works in the repository works on the site too, and the site needs no other host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from os.path import relpath
from pathlib import Path
from posixpath import dirname, normpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_REPOSITORY = Path(__file__).parents[2]
_DOCS = "docs/"
_HOME = "README.md"
_LINK = re.compile(r"(?<=\]\()(?P<target>[^)#:\s]+)(?P<anchor>#[^)\s]*)?(?=\))")
_LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".sh": "sh"}
_origins: dict[str, str] = {}  # page of the site -> the file of the repository that it shows


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    waiting = [_HOME, *(_DOCS + file.src_uri for file in files.documentation_pages())]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        if not path.startswith(_DOCS):
            page = _page_of(path)
            _origins[page] = path
            files.append(File.generated(config, page, content=_shown(path)))
        if path.endswith(".md"):
            new = {target for target, _ in _links(path) if not target.startswith(_DOCS)} - seen
            waiting += new
            seen |= new
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn links from file to file of the repository into links from page to page."""
    here = page.file.src_uri
    path = _origins.get(here, _DOCS + here)

    def on_site(link: re.Match[str]) -> str:
        target = _target(path, link["target"])
        if target is None or (path.startswith(_DOCS) and target.startswith(_DOCS)):
            return link[0]
        return relpath(_page_of(target), dirname(here) or ".") + (link["anchor"] or "")

    return _LINK.sub(on_site, markdown)


def _links(path: str) -> Iterator[tuple[str, str]]:
    for link in _LINK.finditer((_REPOSITORY / path).read_text()):
        target = _target(path, link["target"])
        if target is not None:
            yield target, link["anchor"] or ""


def _target(path: str, link: str) -> str | None:
    """The file or folder of the repository that a link in another one leads to; None if there is none."""
    target = normpath(f"{dirname(path)}/{link}" if dirname(path) else link)
    return target if not target.startswith("..") and (_REPOSITORY / target).exists() else None


def _page_of(path: str) -> str:
    if path.startswith(_DOCS):
        return path.removeprefix(_DOCS)
    if path == _HOME:
        return "index.md"
    return f"repository/{path}" if path.endswith(".md") else f"repository/{path}.md"


def _shown(path: str) -> str:
    """The text of a page: a document as it is, another file as code, a folder as its files."""
    place = _REPOSITORY / path
    if place.suffix == ".md":
        return ("---\nhide: [navigation]\n---\n" if path == _HOME else "") + place.read_text()
    contents = sorted(place.iterdir()) if place.is_dir() else [place]
    code = (
        f"## {file.name}\n\n````{_LANGUAGES.get(file.suffix, 'text')}\n{file.read_text()}\n````\n"
        for file in contents
    )
    return f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n" + "\n".join(code)

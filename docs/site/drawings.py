"""The script that draws, on the pages that have a drawing: the site's own copy of Mermaid, so that it needs no other host.

In Mermaid 11.15 to 11.17 the theme's colours do not reach the heads of arrows, which cannot be seen on the dark page.
"""

from __future__ import annotations

from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

_SCRIPT = "assets/mermaid.tiny.js"


def on_post_page(output: str, page: Page, **_: object) -> str:
    """Load the script in front of the theme's, which would fetch Mermaid from elsewhere where it is not loaded."""
    if 'class="mermaid"' not in output:
        return output
    address = get_relative_url(_SCRIPT, page.url)
    return output.replace("</head>", f'<script src="{address}"></script></head>', 1)

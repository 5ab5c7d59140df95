"""Changes that mkdocs makes to a page of docs/ before it becomes one of the site."""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with links to files outside of docs/, which the site lacks, as their paths."""
    return re.sub(r"\[([^\]]+)\]\((?:\.\./)+([^)]+)\)", r"\1 (`\2` in the repository)", markdown)

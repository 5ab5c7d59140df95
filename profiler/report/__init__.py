"""Reports: ``summarize`` says what there is to say, ``render_text`` prints it."""

from .page import Style
from .summary import Summary, summarize
from .text import render_ledger, render_text

__all__ = ["Style", "Summary", "render_ledger", "render_text", "summarize"]
